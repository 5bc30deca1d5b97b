// n:m pruning of a gradient on the CPU, its rescaling and its compression, as C functions (called through ctypes).
//
// Work is divided into blocks whose size does not depend on the number of threads, and sums are added in block order. The
// result is therefore bit-identical for every number of threads.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "compress_chunks.h"
#include "prune_chunks.h"

namespace pdt {
namespace {

constexpr int64_t streaming_bytes = int64_t{16} << 20;  // a result that exceeds common last-level caches

// A result that exceeds the caches is written past them; a smaller one should stay there for its next read.
template <class Format>
bool worth_streaming(const Problem& problem) {
    const int64_t elements = problem.samples * problem.pixels * problem.channels;
    return problem.pruned != problem.grad && problem.fast_groups &&
           elements * static_cast<int64_t>(sizeof(typename Format::Bits)) >= streaming_bytes &&
           reinterpret_cast<uintptr_t>(problem.pruned) % vector_bytes == 0;
}

template <class Format>
void prune_without_rescaling(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t groups = problem.groups();
    // A multiple of 64 groups, so that a chunk starts at a whole vector and at a whole Philox block.
    const int64_t chunk_groups = std::max<int64_t>(64, chunk_elements / problem.m / 64 * 64);
    const int64_t chunks = (groups + chunk_groups - 1) / chunk_groups;
    const bool streamed = worth_streaming<Format>(problem);
#pragma omp parallel num_threads(problem.threads)
    {
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            uint8_t keep_bits[keep_bytes(chunk_elements)];
            const int64_t first = chunk * chunk_groups, offset = problem.offset(first);
            prune_groups<Format>(problem, first, std::min(groups, first + chunk_groups),
                                 static_cast<const Bits*>(problem.grad) + offset,
                                 static_cast<Bits*>(problem.pruned) + offset, keep_bits, streamed);
        }
        finish_streaming();
    }
}

// Ratio per run of elements (a group, or a row).
template <class Format>
void prune_and_rescale_runs(const Problem& problem) {
    using Bits = typename Format::Bits;
    const Runs shape(problem);
    const int64_t all_pixels = problem.samples * problem.pixels;
    const int64_t chunks = (all_pixels + shape.chunk_pixels - 1) / shape.chunk_pixels;
    ThreadMemory<float> memory(problem.threads, shape.memory);
    ThreadMemory<uint8_t> keep_bits(problem.threads, keep_bytes(shape.chunk));
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t pixel = chunk * shape.chunk_pixels;
        prune_and_rescale_chunk<Format>(problem, shape, pixel, std::min(shape.chunk_pixels, all_pixels - pixel),
                                        static_cast<Bits*>(problem.pruned) + pixel * shape.channels, keep_bits.own(),
                                        memory.own());
    }
}

// Prunes `pixels` pixels from `first_pixel` into `to`, and adds their sums of magnitudes before and after to `sums`. Each
// chunk is summed separately, because it is in the cache and short partial sums lose fewer bits. A chunk is summed before
// it is pruned, because `to` may be the gradient itself.
template <class Format>
void prune_and_sum(const Problem& problem, const ChannelSums<Format>& shape, int64_t first_pixel, int64_t pixels,
                   typename Format::Bits* to, uint8_t* keep_bits, Vector<float>* sums) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels;
    const int64_t chunk_pixels = summed_pixels(channels);
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first_pixel * channels;
    for (int64_t pixel = 0; pixel < pixels; pixel += chunk_pixels) {
        const int64_t count = std::min(chunk_pixels, pixels - pixel);
        add_magnitudes<Format>(shape, grad + pixel * channels, count, shape.dense(sums));
        prune_pixels<Format>(problem, first_pixel + pixel, count, to + pixel * channels, keep_bits);
        add_magnitudes<Format>(shape, to + pixel * channels, count, shape.kept(sums));
    }
}

// Ratio per (sample, channel): a sample is pruned and summed, then multiplied while it is in the cache. (Pruning into
// memory of the thread and streaming the product was slower, because reads and writes then alternate.)
template <class Format>
void prune_and_rescale_samples(const Problem& problem) {
    using Bits = typename Format::Bits;
    const ChannelSums<Format> shape(problem.channels);
    VectorMemory sums_of_threads(problem.threads * shape.vectors);
    ThreadMemory<uint8_t> keep_bits(problem.threads, keep_bytes(summed_pixels(problem.channels) * problem.channels));
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t sample = 0; sample < problem.samples; ++sample) {
        Vector<float>* sums = sums_of_threads.part(thread_index(), shape.vectors);
        Bits* pixels = static_cast<Bits*>(problem.pruned) + sample * problem.pixels * problem.channels;
        shape.clear(sums);
        prune_and_sum<Format>(problem, shape, sample * problem.pixels, problem.pixels, pixels, keep_bits.own(),
                              sums);
        shape.divide(sums);
        multiply_pixels<Format>(shape, pixels, pixels, problem.pixels, shape.dense(sums));
    }
}

// Ratio per channel over the whole batch: every element is written before the first ratio is known.
template <class Format>
void prune_and_rescale_batch(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t block_pixels = batch_block_pixels(channels);
    const int64_t blocks = (all_pixels + block_pixels - 1) / block_pixels;
    const ChannelSums<Format> shape(channels);
    VectorMemory sums_of_blocks(blocks * shape.vectors);
    ThreadMemory<uint8_t> keep_bits(problem.threads, keep_bytes(summed_pixels(channels) * channels));
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    const auto pixels_of = [&](int64_t block) { return std::min(block_pixels, all_pixels - block * block_pixels); };
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        Vector<float>* sums = sums_of_blocks.part(block, shape.vectors);
        shape.clear(sums);
        prune_and_sum<Format>(problem, shape, block * block_pixels, pixels_of(block),
                              pruned + block * block_pixels * channels, keep_bits.own(), sums);
    }
    const Vector<float>* ratio = shape.ratios(sums_of_blocks, blocks);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        Bits* pixels = pruned + block * block_pixels * channels;
        multiply_pixels<Format>(shape, pixels, pixels, pixels_of(block), ratio);
    }
}

template <class Format>
void prune(const Problem& problem) {
    switch (problem.scope) {
        case scope_none: return prune_without_rescaling<Format>(problem);
        case scope_sample_channel: return prune_and_rescale_samples<Format>(problem);
        case scope_channel: return prune_and_rescale_batch<Format>(problem);
        default: return prune_and_rescale_runs<Format>(problem);
    }
}

}  // namespace
}  // namespace pdt

// Returns 0, or 2 if the memory for the sums cannot be allocated. m is 2 to 32, and n at most m.
// format: 0 fp32, 1 bf16, 2 fp16. mode and scope: position in MODES and SCOPES of kernels/prune/rule.py; the scope that
// follows them (pdt::scope_row) sums over each row of a matrix.
extern "C" int pdt_prune_nm(const void* grad, void* pruned, int64_t samples, int64_t pixels, int64_t channels, int n,
                            int m, int format, int mode, int scope, uint64_t seed, int threads) {
    const pdt::Problem problem{grad, pruned, samples, pixels, channels, n, m, mode, scope, seed, threads};
    return pdt::run(problem, format, [&](auto number) { pdt::prune<decltype(number)>(problem); });
}

// Prunes and writes only what is kept. Arguments and status as those of pdt_prune_nm. `values` and `numbers` have the same
// shape: (samples, pixels, kept), where `kept` is the sum over the groups of n, or of min(n, size) for a short last group.
extern "C" int pdt_compress_nm(const void* grad, float* values, int16_t* numbers, int64_t samples, int64_t pixels,
                               int64_t channels, int n, int m, int format, int mode, int scope, uint64_t seed,
                               int threads) {
    const pdt::Problem problem{grad, nullptr, samples, pixels, channels, n, m, mode, scope, seed, threads};
    return pdt::run(problem, format, [&](auto number) {
        pdt::compress<decltype(number)>(problem, pdt::Result(problem, values, numbers));
    });
}

// Properties of the compiled library, for the report: support of several threads, and width of vectors.
extern "C" int pdt_has_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}
extern "C" int pdt_vector_bits() { return 8 * pdt::vector_bytes; }
