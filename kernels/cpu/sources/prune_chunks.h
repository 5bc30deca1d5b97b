// Pruning and rescaling of chunks that stay in a cache, for the kernels that write a pruned gradient or a compressed one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <new>

#include "channel_sums.h"
#include "group_ratio.h"
#include "prune_run.h"
#include "threads.h"

namespace pdt {

enum Scope { scope_none = 0, scope_group = 1, scope_sample_channel = 2, scope_channel = 3, scope_row = 4 };

constexpr int64_t block_elements = 16384;  // both copies of a block stay in the second-level cache
constexpr int64_t chunk_elements = 2048;   // both copies of a chunk stay in the first-level cache
constexpr int64_t short_sum = 256;         // terms that are added sequentially; a long sum is a sum of short ones
constexpr int64_t chunk_least_pixels = 16;  // the same for sums over pixels

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
inline int64_t batch_block_pixels(int64_t channels) { return std::max<int64_t>(1, 8 * block_elements / channels); }

// Prunes whole pixels into `to`.
template <class Format, Output What>
void prune_pixels(const Problem& problem, int64_t first, int64_t count, const Target<Format, What>& to) {
    using Bits = typename Format::Bits;
    const int64_t per_pixel = problem.groups_per_pixel();
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first * problem.channels;
    prune_run<Format, What>(problem, {first * per_pixel, (first + count) * per_pixel, grad, to});
}

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

template <class Format>
void rescale_groups_of(int m, const typename Format::Bits* dense, const typename Format::Bits* pruned,
                       typename Format::Bits* to, int64_t elements) {
    switch (m) {
        case 2: return rescale_groups<Format, 2>(dense, pruned, to, elements);
        case 4: return rescale_groups<Format, 4>(dense, pruned, to, elements);
        case 8: return rescale_groups<Format, 8>(dense, pruned, to, elements);
        case 16: return rescale_groups<Format, 16>(dense, pruned, to, elements);
        default: return rescale_groups<Format, 32>(dense, pruned, to, elements);
    }
}

// Ratio per run of elements (a group, or a row): sizes of a chunk and of the memory that it needs.
struct Runs {
    int64_t channels, run, runs;  // elements of a run, and runs of a pixel
    int64_t chunk_pixels, memory;

    explicit Runs(const Problem& problem)
        : channels(problem.channels),
          run(problem.scope == scope_row ? channels : problem.m),
          runs((channels + run - 1) / run),
          chunk_pixels(std::max<int64_t>(1, chunk_elements / channels)),
          memory(chunk_pixels * (channels + 2 * runs)) {}
};

// Sums, prunes, sums again and multiplies a chunk. The values of `to` may replace the gradient.
template <class Format, Output What>
void prune_and_rescale_chunk(const Problem& problem, const Runs& shape, int64_t pixel, int64_t pixels,
                             const Target<Format, What>& to, float* memory) {
    using Bits = typename Format::Bits;
    const int64_t channels = shape.channels, run = shape.run, runs = shape.runs, count = pixels * channels;
    const Bits* grad = static_cast<const Bits*>(problem.grad) + pixel * channels;
    Bits* pruned = to.values;
    float *magnitudes = memory, *dense = magnitudes + shape.chunk_pixels * channels;
    float* kept = dense + shape.chunk_pixels * runs;

    for (int64_t e = 0; e < count; ++e) magnitudes[e] = magnitude<Format>(grad[e]);
    sum_runs(magnitudes, pixels, channels, run, dense);
    prune_pixels(problem, pixel, pixels, to);
    for (int64_t e = 0; e < count; ++e) magnitudes[e] = magnitude<Format>(pruned[e]);
    sum_runs(magnitudes, pixels, channels, run, kept);

    float* ratio = magnitudes;
    for (int64_t r = 0; r < pixels * runs; ++r) dense[r] = ratio_of(dense[r], kept[r]);
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t r = 0; r < runs; ++r)
            std::fill(ratio + p * channels + r * run, ratio + p * channels + std::min((r + 1) * run, channels),
                      dense[p * runs + r]);
    for (int64_t e = 0; e < count; ++e) pruned[e] = rescaled<Format>(pruned[e], ratio[e]);
}

// Checks a problem and runs `work` with its number format; returns the status of the C functions.
template <class Work>
int run_checked(const Problem& problem, int format, const Work& work) {
    const bool valid = problem.samples >= 0 && problem.pixels >= 0 && problem.channels >= 0 && problem.m >= 2 &&
                       problem.m <= 32 && problem.n >= 1 && problem.n <= problem.m && format >= 0 && format <= 2 &&
                       problem.mode >= 0 && problem.mode <= 2 && problem.scope >= 0 && problem.scope <= 4 &&
                       (problem.mode != mode_unbiased || problem.scope == scope_none) && problem.threads >= 1;
    if (!valid) return 1;
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
