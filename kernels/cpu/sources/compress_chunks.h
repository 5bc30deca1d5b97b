// Pruning that returns only the kept values, in fp32, and their channel numbers.
//
// Pruning writes keep bits, one bit per element, and the kept elements are compressed while they are in the cache. The
// rescaling adds the same terms in the same order as prune_nm.cpp. The values are therefore bit-identical to its result,
// for every number of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kept_lanes.h"
#include "prune_chunks.h"

namespace pdt {

// Destination of a compression: (pixels, kept) values and channel numbers.
struct Result {
    float* values;
    int16_t* channels;
    int64_t kept;  // values of a pixel

    Result(const Problem& problem, float* values, int16_t* channels)
        : values(values),
          channels(channels),
          kept(problem.channels / problem.m * problem.n + std::min<int64_t>(problem.channels % problem.m, problem.n)) {}

    Compressed part(int64_t pixel, int64_t pixels) const {
        return {values + pixel * kept, channels + pixel * kept, values + (pixel + pixels) * kept};
    }
};

// Compresses pixels.
template <class Format>
void compress_pixels(const Problem& problem, const typename Format::Bits* pixel, const uint8_t* keep_bits,
                     int64_t pixels, Compressed to) {
    constexpr int width = lanes<typename Format::Bits>;
    const int64_t channels = problem.channels, elements = pixels * channels;
    int64_t done = 0;
    if (problem.whole_groups && 64 % problem.m == 0 && (channels % 64 == 0 || 64 % channels == 0)) {
        const KeptWords<Format> words{channels, 64 / problem.m * problem.n};
        done = 64 * words.compress(pixel, keep_bits, elements / 64, to);
    }
    for (int64_t p = done / channels, c = done % channels; p < pixels; ++p, c = 0)
        for (; c < channels; c += width) {
            const int64_t left = std::min<int64_t>(width, channels - c), element = p * channels + c;
            append_kept<Format>(load_first(pixel + element, left),
                                bits_from(keep_bits, element, static_cast<int>(left)), c, to);
        }
}

// Pixels of a chunk: a multiple of 8, so that its random masks start at a whole Philox block, unless a pixel has one.
inline int64_t compressed_pixels(const Problem& problem) {
    const int64_t pixels = std::max<int64_t>(1, chunk_elements / problem.channels);
    return problem.mode != mode_random || problem.channels % 8 == 0 ? pixels : (pixels + 7) / 8 * 8;
}

template <class Format>
void compress_without_rescaling(const Problem& problem, const Result& result) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t chunk_pixels = compressed_pixels(problem), chunks = (all_pixels + chunk_pixels - 1) / chunk_pixels;
    const bool unbiased = problem.mode == mode_unbiased;
    ThreadMemory<uint8_t> keep_bits(problem.threads, keep_bytes(chunk_pixels * channels));
    ThreadMemory<Bits> sampled(problem.threads, unbiased ? chunk_pixels * channels : 0);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t pixel = chunk * chunk_pixels, pixels = std::min(chunk_pixels, all_pixels - pixel);
        // The kept values of unbiased pruning differ from those of the gradient.
        Bits* values = unbiased ? sampled.own() : nullptr;
        prune_pixels<Format>(problem, pixel, pixels, values, keep_bits.own());
        const Bits* kept = unbiased ? values : static_cast<const Bits*>(problem.grad) + pixel * channels;
        compress_pixels<Format>(problem, kept, keep_bits.own(), pixels, result.part(pixel, pixels));
    }
}

// Ratio per group or per row. A chunk is pruned and rescaled in memory of its thread, and compressed from there.
template <class Format>
void compress_and_rescale_runs(const Problem& problem, const Result& result) {
    using Bits = typename Format::Bits;
    const Runs shape(problem);
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t chunk_pixels = shape.chunk_pixels, chunks = (all_pixels + chunk_pixels - 1) / chunk_pixels;
    ThreadMemory<uint8_t> keep_bits(problem.threads, keep_bytes(chunk_pixels * channels));
    ThreadMemory<Bits> pruned(problem.threads, chunk_pixels * channels);
    ThreadMemory<float> sums(problem.threads, shape.memory);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t pixel = chunk * chunk_pixels, pixels = std::min(chunk_pixels, all_pixels - pixel);
        prune_and_rescale_chunk<Format>(problem, shape, pixel, pixels, pruned.own(), keep_bits.own(), sums.own());
        compress_pixels<Format>(problem, pruned.own(), keep_bits.own(), pixels, result.part(pixel, pixels));
    }
}

// Keep bits of many pixels, in chunks that start at whole bytes.
struct KeptPixels {
    int64_t chunk_pixels, chunk_bytes;

    explicit KeptPixels(int64_t channels)
        : chunk_pixels(summed_pixels(channels)), chunk_bytes(keep_bytes(chunk_pixels * channels)) {}
    int64_t bytes(int64_t pixels) const { return (pixels + chunk_pixels - 1) / chunk_pixels * chunk_bytes; }
};

// Determines which elements of `pixels` pixels are kept, and adds their sums of magnitudes before and after to `sums`,
// in the order of prune_nm.cpp. `pruned` is memory for a chunk.
template <class Format>
void keep_and_sum(const Problem& problem, const ChannelSums<Format>& shape, const KeptPixels& kept, int64_t first_pixel,
                  int64_t pixels, uint8_t* keep_bits, typename Format::Bits* pruned, Vector<float>* sums) {
    using Bits = typename Format::Bits;
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first_pixel * problem.channels;
    for (int64_t pixel = 0; pixel < pixels; pixel += kept.chunk_pixels, keep_bits += kept.chunk_bytes) {
        const int64_t count = std::min(kept.chunk_pixels, pixels - pixel);
        add_magnitudes<Format>(shape, grad + pixel * problem.channels, count, shape.dense(sums));
        prune_pixels<Format>(problem, first_pixel + pixel, count, pruned, keep_bits);
        add_magnitudes<Format>(shape, pruned, count, shape.kept(sums));
    }
}

// Multiplies pixels by the ratios of their channels, in `scratch` for a chunk, and compresses them.
template <class Format>
void rescale_and_compress(const Problem& problem, const ChannelSums<Format>& shape, const KeptPixels& kept,
                          int64_t first_pixel, int64_t pixels, const uint8_t* keep_bits, const Vector<float>* ratio,
                          typename Format::Bits* scratch, const Result& result) {
    using Bits = typename Format::Bits;
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first_pixel * problem.channels;
    for (int64_t pixel = 0; pixel < pixels; pixel += kept.chunk_pixels, keep_bits += kept.chunk_bytes) {
        const int64_t count = std::min(kept.chunk_pixels, pixels - pixel);
        multiply_pixels<Format>(shape, grad + pixel * problem.channels, scratch, count, ratio);
        compress_pixels<Format>(problem, scratch, keep_bits, count, result.part(first_pixel + pixel, count));
    }
}

// Ratio per (sample, channel): a sample is summed, then multiplied and compressed while it is in the cache.
template <class Format>
void compress_and_rescale_samples(const Problem& problem, const Result& result) {
    using Bits = typename Format::Bits;
    const ChannelSums<Format> shape(problem.channels);
    const KeptPixels kept(problem.channels);
    VectorMemory sums_of_threads(problem.threads * shape.vectors);
    ThreadMemory<uint8_t> keep_bits(problem.threads, kept.bytes(problem.pixels));
    ThreadMemory<Bits> pruned(problem.threads, kept.chunk_pixels * problem.channels);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t sample = 0; sample < problem.samples; ++sample) {
        Vector<float>* sums = sums_of_threads.part(thread_index(), shape.vectors);
        const int64_t first = sample * problem.pixels;
        shape.clear(sums);
        keep_and_sum(problem, shape, kept, first, problem.pixels, keep_bits.own(), pruned.own(), sums);
        shape.divide(sums);
        rescale_and_compress(problem, shape, kept, first, problem.pixels, keep_bits.own(), shape.dense(sums),
                             pruned.own(), result);
    }
}

// Ratio per channel over the whole batch: the gradient is read twice, and its keep bits are stored in between.
template <class Format>
void compress_and_rescale_batch(const Problem& problem, const Result& result) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t block_pixels = batch_block_pixels(channels), blocks = (all_pixels + block_pixels - 1) / block_pixels;
    const ChannelSums<Format> shape(channels);
    const KeptPixels kept(channels);
    const int64_t block_bytes = kept.bytes(block_pixels);
    VectorMemory sums_of_blocks(blocks * shape.vectors);
    std::vector<uint8_t> keep_bits(static_cast<std::size_t>(blocks * block_bytes));
    ThreadMemory<Bits> pruned(problem.threads, kept.chunk_pixels * channels);
    const auto pixels_of = [&](int64_t block) { return std::min(block_pixels, all_pixels - block * block_pixels); };
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        Vector<float>* sums = sums_of_blocks.part(block, shape.vectors);
        shape.clear(sums);
        keep_and_sum(problem, shape, kept, block * block_pixels, pixels_of(block), keep_bits.data() + block * block_bytes,
                     pruned.own(), sums);
    }
    const Vector<float>* ratio = shape.ratios(sums_of_blocks, blocks);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block)
        rescale_and_compress(problem, shape, kept, block * block_pixels, pixels_of(block),
                             keep_bits.data() + block * block_bytes, ratio, pruned.own(), result);
}

template <class Format>
void compress(const Problem& problem, const Result& result) {
    switch (problem.scope) {
        case scope_none: return compress_without_rescaling<Format>(problem, result);
        case scope_sample_channel: return compress_and_rescale_samples<Format>(problem, result);
        case scope_channel: return compress_and_rescale_batch<Format>(problem, result);
        default: return compress_and_rescale_runs<Format>(problem, result);
    }
}

}  // namespace pdt
