// n:m pruning of a gradient on the CPU, with its rescaling, behind one C function (called through ctypes).
//
// Work is cut into blocks whose size does not depend on the number of threads, and sums are added in block order: the
// result is the same bit for bit whatever the number of threads.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "prune_blocks.h"

namespace pdt {
namespace {

enum Scope { scope_none = 0, scope_group = 1, scope_sample_channel = 2, scope_channel = 3, scope_row = 4 };

constexpr int64_t block_elements = 16384;  // both copies of a block stay in the second-level cache
constexpr int64_t chunk_elements = 2048;   // both copies of a chunk stay in the first-level cache

inline int64_t thread_index() {
#if defined(_OPENMP)
    return omp_get_thread_num();
#else
    return 0;
#endif
}

HOST_DEVICE float ratio_of(float dense, float kept) { return kept == 0.0f ? 0.0f : dense / kept; }

template <class Format>
HOST_DEVICE float magnitude(typename Format::Bits bits) {
    return Format::decode(static_cast<typename Format::Bits>(bits & Format::without_sign));
}

// A pruned channel stays exactly zero, also when the ratio is not finite. Written with a mask for the reason that
// `select` gives.
template <class Format>
HOST_DEVICE typename Format::Bits rescaled(typename Format::Bits bits, float ratio) {
    using Bits = typename Format::Bits;
    const Bits product = Format::encode(Format::decode(bits) * ratio);
    const Bits nonzero = static_cast<Bits>(-static_cast<int32_t>((bits & Format::without_sign) != 0));
    return static_cast<Bits>((product & nonzero) | (bits & ~nonzero));
}

// Prunes `pixels` pixels from `first_pixel` and adds sums of |G| and |G^| per channel to dense[] and kept[]. Sums are
// taken per chunk first: the chunk is in cache, and short partial sums lose fewer bits. An in-place problem must be
// summed before it is pruned, hence two loops.
template <class Format>
void prune_and_sum(const Problem& problem, int64_t first_pixel, int64_t pixels, float* sums) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, per_pixel = problem.groups_per_pixel();
    float *dense = sums, *kept = sums + channels, *chunk_dense = sums + 2 * channels, *chunk_kept = sums + 3 * channels;
    const int64_t chunk_pixels = std::max<int64_t>(1, chunk_elements / channels);
    const int64_t end = first_pixel + pixels;
    for (int64_t pixel = first_pixel; pixel < end; pixel += chunk_pixels) {
        const int64_t count = std::min(chunk_pixels, end - pixel);
        std::fill(chunk_dense, chunk_dense + 2 * channels, 0.0f);
        const Bits* grad = static_cast<const Bits*>(problem.grad) + pixel * channels;
        const Bits* pruned = static_cast<const Bits*>(problem.pruned) + pixel * channels;
        for (int64_t p = 0; p < count; ++p)
            for (int64_t c = 0; c < channels; ++c) chunk_dense[c] += magnitude<Format>(grad[p * channels + c]);
        prune_groups<Format>(problem, pixel * per_pixel, (pixel + count) * per_pixel);
        for (int64_t p = 0; p < count; ++p)
            for (int64_t c = 0; c < channels; ++c) chunk_kept[c] += magnitude<Format>(pruned[p * channels + c]);
        for (int64_t c = 0; c < channels; ++c) dense[c] += chunk_dense[c];
        for (int64_t c = 0; c < channels; ++c) kept[c] += chunk_kept[c];
    }
}

template <class Format>
void multiply_channels(const Problem& problem, int64_t first_pixel, int64_t pixels, const float* ratio) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels;
    Bits* pruned = static_cast<Bits*>(problem.pruned) + first_pixel * channels;
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t c = 0; c < channels; ++c)
            pruned[p * channels + c] = rescaled<Format>(pruned[p * channels + c], ratio[c]);
}

template <class Format>
void prune_without_rescaling(const Problem& problem) {
    const int64_t groups = problem.groups();
    // A multiple of 32 groups: a block then starts at a whole vector of groups and at a whole Philox block.
    const int64_t block_groups = std::max<int64_t>(32, block_elements / problem.m / 32 * 32);
    const int64_t blocks = (groups + block_groups - 1) / block_groups;
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block)
        prune_groups<Format>(problem, block * block_groups, std::min(groups, (block + 1) * block_groups));
}

// Sum of each run (a group, or a whole row) of `pixels` pixels' magnitudes.
void sum_runs(const float* magnitudes, int64_t pixels, int64_t channels, int64_t run, float* sums) {
    for (int64_t p = 0; p < pixels; ++p)
        for (int64_t start = 0; start < channels; start += run) {
            float total = 0.0f;
            for (int64_t c = start; c < std::min(start + run, channels); ++c) total += magnitudes[p * channels + c];
            *sums++ = total;
        }
}

// Ratio per run of elements: a group, or a row. A chunk is summed, pruned, summed again and multiplied while in cache.
template <class Format>
void prune_and_rescale_runs(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, per_pixel = problem.groups_per_pixel();
    const int64_t run = problem.scope == scope_row ? channels : problem.m, runs = (channels + run - 1) / run;
    const int64_t all_pixels = problem.samples * problem.pixels;
    const int64_t chunk_pixels = std::max<int64_t>(1, chunk_elements / channels);
    const int64_t chunks = (all_pixels + chunk_pixels - 1) / chunk_pixels;
    const int64_t memory = chunk_pixels * (channels + 2 * runs);
    std::vector<float> memory_of_threads(static_cast<std::size_t>(problem.threads * memory));
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t pixel = chunk * chunk_pixels, pixels = std::min(chunk_pixels, all_pixels - pixel);
        const int64_t count = pixels * channels;
        const Bits* grad = static_cast<const Bits*>(problem.grad) + pixel * channels;
        Bits* pruned = static_cast<Bits*>(problem.pruned) + pixel * channels;
        float* magnitudes = memory_of_threads.data() + thread_index() * memory;
        float *dense = magnitudes + chunk_pixels * channels, *kept = dense + chunk_pixels * runs;

        for (int64_t e = 0; e < count; ++e) magnitudes[e] = magnitude<Format>(grad[e]);
        sum_runs(magnitudes, pixels, channels, run, dense);
        prune_groups<Format>(problem, pixel * per_pixel, (pixel + pixels) * per_pixel);
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
}

// Ratio per (sample, channel): a sample is pruned and summed, then multiplied while it is still in cache.
template <class Format>
void prune_and_rescale_samples(const Problem& problem) {
    const int64_t channels = problem.channels;
    std::vector<float> sums_of_threads(static_cast<std::size_t>(problem.threads * 4 * channels));
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t sample = 0; sample < problem.samples; ++sample) {
        float* sums = sums_of_threads.data() + thread_index() * 4 * channels;
        std::fill(sums, sums + 2 * channels, 0.0f);
        prune_and_sum<Format>(problem, sample * problem.pixels, problem.pixels, sums);
        float* ratio = sums;
        for (int64_t c = 0; c < channels; ++c) ratio[c] = ratio_of(sums[c], sums[channels + c]);
        multiply_channels<Format>(problem, sample * problem.pixels, problem.pixels, ratio);
    }
}

// Ratio per channel over the whole batch: every element is written before the first ratio is known.
template <class Format>
void prune_and_rescale_batch(const Problem& problem) {
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t block_pixels = std::max<int64_t>(1, 8 * block_elements / channels);
    const int64_t blocks = (all_pixels + block_pixels - 1) / block_pixels;
    std::vector<float> sums(static_cast<std::size_t>(blocks * 4 * channels), 0.0f), ratio(channels);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block)
        prune_and_sum<Format>(problem, block * block_pixels, std::min(block_pixels, all_pixels - block * block_pixels),
                              sums.data() + block * 4 * channels);
    for (int64_t c = 0; c < channels; ++c) {
        float dense = 0.0f, kept = 0.0f;
        for (int64_t block = 0; block < blocks; ++block) {
            dense += sums[block * 4 * channels + c];
            kept += sums[(block * 4 + 1) * channels + c];
        }
        ratio[c] = ratio_of(dense, kept);
    }
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block)
        multiply_channels<Format>(problem, block * block_pixels,
                                  std::min(block_pixels, all_pixels - block * block_pixels), ratio.data());
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

// Returns 0, or 1 when an argument is out of range, 2 when the memory for the sums could not be had.
// format: 0 fp32, 1 bf16, 2 fp16; mode: 0 magnitude, 1 random; scope: as in pdt::Scope.
extern "C" int pdt_prune_nm(const void* grad, void* pruned, int64_t samples, int64_t pixels, int64_t channels, int n,
                            int m, int format, int mode, int scope, uint64_t seed, int threads) {
    const bool right = samples >= 0 && pixels >= 0 && channels >= 0 && m >= 2 && m <= 32 && n >= 1 && n <= m &&
                       format >= 0 && format <= 2 && mode >= 0 && mode <= 1 && scope >= 0 && scope <= 4 && threads >= 1;
    if (!right) return 1;
    if (samples == 0 || pixels == 0 || channels == 0) return 0;
    const pdt::Problem problem{grad, pruned, samples, pixels, channels, n, m, mode, scope, seed, threads};
    try {
        switch (format) {
            case 0: pdt::prune<pdt::Float32>(problem); break;
            case 1: pdt::prune<pdt::BFloat16>(problem); break;
            default: pdt::prune<pdt::Float16>(problem); break;
        }
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

// What the compiler made of it, for the report: whether it can use several threads, and the width of its vectors.
extern "C" int pdt_has_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}
extern "C" int pdt_vector_bits() { return 8 * pdt::vector_bytes; }
