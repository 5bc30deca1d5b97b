// Pruning and rescaling of chunks that stay in a cache, for the kernels that write a pruned gradient or a compressed one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "channel_sums.h"
#include "group_ratio.h"
#include "keep_bits.h"
#include "sample_groups.h"
#include "threads.h"

namespace pdt {

enum Scope { scope_none = 0, scope_group = 1, scope_sample_channel = 2, scope_channel = 3, scope_row = 4 };

constexpr int64_t batch_block_elements = 131072;  // with sums of their own, if a ratio is that of the whole batch
constexpr int64_t chunk_elements = 2048;          // both copies of a chunk stay in the first-level cache
constexpr int64_t short_sum = 256;                // terms that are added sequentially; a long sum is a sum of short ones
constexpr int64_t chunk_least_pixels = 16;        // the same for sums over pixels

HOST_DEVICE float ratio_of(float dense, float kept) { return kept == 0.0f ? 0.0f : dense / kept; }

template <class Format>
HOST_DEVICE float magnitude(typename Format::Bits bits) {
    return Format::decode(static_cast<typename Format::Bits>(bits & Format::without_sign));
}

// Uses a mask, as `select` does, so that loops vectorise.
template <class Format>
HOST_DEVICE typename Format::Bits rescaled(typename Format::Bits bits, float ratio) {
    using Bits = typename Format::Bits;
    const Bits product = Format::encode(Format::decode(bits) * ratio);
    const Bits nonzero = static_cast<Bits>(-static_cast<int32_t>((bits & Format::without_sign) != 0));
    return static_cast<Bits>((product & nonzero) | (bits & ~nonzero));
}

// Pixels of a chunk whose sums per channel are added separately.
inline int64_t summed_pixels(int64_t channels) { return std::max(chunk_least_pixels, chunk_elements / channels); }
// Pixels of a block of a batch, which has its own sums.
inline int64_t batch_block_pixels(int64_t channels) { return std::max<int64_t>(1, batch_block_elements / channels); }

// Writes the kept elements, and zeros for the others, which may replace `from`. Streamed values are aligned to vectors.
template <class Bits>
void apply(const Bits* from, const uint8_t* keep_bits, int64_t elements, Bits* values, bool streamed = false) {
    int64_t e = 0;
    for (; e + lanes<Bits> <= elements; e += lanes<Bits>) {
        const Vector<Bits> kept = keep_where<Bits>(keep_bits, e, load<Bits>(from + e));
        streamed ? stream<Bits>(values + e, kept) : store<Bits>(values + e, kept);
    }
    if (e < elements)
        store_first(values + e, keep_where<Bits>(keep_bits, e, load_first(from + e, elements - e)), elements - e);
}

// Prunes groups first .. last - 1, counted over (sample, pixel, group of the pixel), of which `from` is the first element.
// Bit e of `keep_bits` tells whether element e is kept; complete tiles are written, which is up to `keep_bits_padding` bytes
// more than the groups have. `values` receives the pruned elements; it may be `from`, or null if no value changes.
template <class Format>
void prune_groups(const Problem& problem, int64_t first, int64_t last, const typename Format::Bits* from,
                  typename Format::Bits* values, uint8_t* keep_bits, bool streamed = false) {
    bool zeros_are_missing = values != nullptr;
    if (problem.mode == mode_unbiased) {
        // The n largest are the sampled ones, unless a sum is not finite; zeros fill up.
        zeros_are_missing = !sample<Format>(problem, first, last, from, values);
        from = values;
        keep_by_magnitude<Format>(problem, first, last, from, keep_bits);
    } else if (problem.mode == mode_random) {
        keep_at_random(problem, first, last, keep_bits);
    } else {
        keep_by_magnitude<Format>(problem, first, last, from, keep_bits);
    }
    if (zeros_are_missing) apply(from, keep_bits, problem.offset(last) - problem.offset(first), values, streamed);
}

// The same for whole pixels.
template <class Format>
void prune_pixels(const Problem& problem, int64_t first, int64_t count, typename Format::Bits* values, uint8_t* keep_bits) {
    const int64_t per_pixel = problem.groups_per_pixel;
    const auto* grad = static_cast<const typename Format::Bits*>(problem.grad) + first * problem.channels;
    prune_groups<Format>(problem, first * per_pixel, (first + count) * per_pixel, grad, values, keep_bits);
}

constexpr int64_t keep_bytes(int64_t elements) { return (elements + 7) / 8 + keep_bits_padding; }

// Memory of each thread.
template <class Type>
class ThreadMemory {
  public:
    ThreadMemory(int threads, int64_t elements)
        : each_((elements * static_cast<int64_t>(sizeof(Type)) + 127) / 128 * 128 / static_cast<int64_t>(sizeof(Type))),
          memory_(static_cast<std::size_t>(each_ * threads)) {}
    Type* own() { return memory_.data() + thread_index() * each_; }

  private:
    int64_t each_;
    std::vector<Type> memory_;
};

// Sums the magnitudes of each run (a group, or a whole row) of `pixels` pixels.
inline void sum_runs(const float* magnitudes, int64_t pixels, int64_t channels, int64_t run, float* sums) {
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t start = 0; start < channels; start += run) {
            const int64_t end = std::min(start + run, channels);
            float total = 0.0f;
            for (int64_t begin = start; begin < end; begin += short_sum) {
                float part = 0.0f;
                for (int64_t c = begin; c < std::min(begin + short_sum, end); ++c) part += magnitudes[p * channels + c];
                total += part;
            }
            *sums++ = total;
        }
}

// Ratio per run of elements (a group, or a row): sizes of a chunk and of the memory that it needs.
struct Runs {
    int64_t channels, run, runs;  // elements of a run, and runs of a pixel
    int64_t chunk_pixels, chunk, memory;
    bool by_tiles;

    explicit Runs(const Problem& problem)
        : channels(problem.channels),
          run(problem.scope == scope_row ? channels : problem.m),
          runs((channels + run - 1) / run),
          chunk_pixels(std::max<int64_t>(1, chunk_elements / channels)),
          chunk(chunk_pixels * channels + 32 * lanes<float>),  // room for a whole tile
          memory(2 * chunk + 2 * chunk_pixels * runs),
          by_tiles(problem.scope == scope_group && problem.fast_groups) {}
};

// Sums, prunes, sums again and multiplies a chunk. The values may replace the gradient.
template <class Format>
void prune_and_rescale_chunk(const Problem& problem, const Runs& shape, int64_t pixel, int64_t pixels,
                             typename Format::Bits* values, uint8_t* keep_bits, float* memory) {
    using Bits = typename Format::Bits;
    const int64_t channels = shape.channels, run = shape.run, runs = shape.runs, count = pixels * channels;
    const Bits* grad = static_cast<const Bits*>(problem.grad) + pixel * channels;
    float *dense = memory, *ratio = dense + shape.chunk, *sums = ratio + shape.chunk, *kept_sums = sums + pixels * runs;

#pragma omp simd
    for (int64_t e = 0; e < count; ++e) dense[e] = magnitude<Format>(grad[e]);
    prune_pixels<Format>(problem, pixel, pixels, values, keep_bits);
#pragma omp simd
    for (int64_t e = 0; e < count; ++e) ratio[e] = magnitude<Format>(values[e]);
    if (shape.by_tiles) {
        with_size(problem.m, [&](auto m) { group_ratios_of<m>(dense, ratio, count); });
    } else {
        sum_runs(dense, pixels, channels, run, sums);
        sum_runs(ratio, pixels, channels, run, kept_sums);
        for (int64_t r = 0; r < pixels * runs; ++r) sums[r] = ratio_of(sums[r], kept_sums[r]);
        for (int64_t p = 0; p < pixels; ++p)
            for (int64_t r = 0; r < runs; ++r)
                std::fill(ratio + p * channels + r * run, ratio + p * channels + std::min((r + 1) * run, channels),
                          sums[p * runs + r]);
    }
#pragma omp simd
    for (int64_t e = 0; e < count; ++e) values[e] = rescaled<Format>(values[e], ratio[e]);
}

// Runs `work` with the number format of a problem; returns 0, or 2 if memory cannot be allocated.
template <class Work>
int run(const Problem& problem, int format, const Work& work) {
    if (problem.samples == 0 || problem.pixels == 0 || problem.channels == 0) return 0;
    try {
        switch (format) {
            case 0: work(Float32{}); break;
            case 1: work(BFloat16{}); break;
            default: work(Float16{}); break;
        }
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

}  // namespace pdt
