// n:m pruning of a gradient on the CPU, with its rescaling, behind one C function (called through ctypes).
//
// Work is cut into blocks whose size does not depend on the number of threads, and sums are added in block order: the
// result is the same bit for bit whatever the number of threads.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "prune_blocks.h"

namespace pdt {
namespace {

enum Scope { scope_none = 0, scope_group = 1, scope_sample_channel = 2, scope_channel = 3, scope_row = 4 };

constexpr int64_t block_elements = 16384;  // both copies of a block stay in the second-level cache
constexpr int64_t chunk_elements = 2048;   // both copies of a chunk stay in the first-level cache

HOST_DEVICE float ratio_of(float dense, float kept) { return kept == 0.0f ? 0.0f : dense / kept; }

template <class Format>
HOST_DEVICE float magnitude(typename Format::Bits bits) {
    return Format::decode(static_cast<typename Format::Bits>(bits & Format::without_sign));
}

// A pruned channel stays exactly zero, also when the ratio is not finite.
template <class Format>
HOST_DEVICE typename Format::Bits rescaled(typename Format::Bits bits, float ratio) {
    const typename Format::Bits product = Format::encode(Format::decode(bits) * ratio);
    return (bits & Format::without_sign) == 0 ? bits : product;
}

// Prunes `pixels` pixels from `first_pixel` and adds sums of |G| and |G^| per channel to dense[] and kept[]. Sums are
// taken per chunk first: the chunk is in cache, and short partial sums lose fewer bits. An in-place problem must be
// summed before it is pruned, hence two loops.
template <class Format>
void prune_and_sum(const Problem& problem, int64_t first_pixel, int64_t pixels, float* sums) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, per_pixel = problem.groups_per_pixel();
    float *dense = sums, *kept = sums + channels, *chunk_dense = sums + 2 * channels, *chunk_kept = sums + 3 * channels;
    // Whole vectors of groups of every type and m (32 lanes of 32 channels) wherever the channels allow it.
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

// Prunes the consecutive elements [0, size) made of groups first .. last - 1, and rescales them by one common ratio.
template <class Format>
void prune_blocks(const Problem& problem) {
    const int64_t groups = problem.groups();
    // A multiple of 32 groups: a block then starts at a whole vector of groups and at a whole Philox block.
    const int64_t block_groups = std::max<int64_t>(32, block_elements / problem.m / 32 * 32);
    const int64_t blocks = (groups + block_groups - 1) / block_groups;
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block)
        prune_groups<Format>(problem, block * block_groups, std::min(groups, (block + 1) * block_groups));
}

// Ratio per run of elements: a group, or a row. Each run is summed before it is overwritten.
template <class Format>
void prune_and_rescale_runs(const Problem& problem) {
    using Bits = typename Format::Bits;
    const bool rows = problem.scope == scope_row;
    const int64_t per_pixel = problem.groups_per_pixel(), channels = problem.channels;
    const int64_t all_pixels = problem.samples * problem.pixels;
    const int64_t run = rows ? channels : problem.m;
    const int64_t runs = rows ? 1 : per_pixel;
    const int64_t block_pixels = std::max<int64_t>(1, chunk_elements / channels);
    const int64_t blocks = (all_pixels + block_pixels - 1) / block_pixels;
    std::vector<float> all_sums(static_cast<std::size_t>(problem.threads) * block_pixels * runs);
#pragma omp parallel num_threads(problem.threads)
    {
        std::vector<float> dense(static_cast<std::size_t>(block_pixels * runs));
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t pixel = block * block_pixels, count = std::min(block_pixels, all_pixels - pixel);
            const Bits* grad = static_cast<const Bits*>(problem.grad) + pixel * channels;
            Bits* pruned = static_cast<Bits*>(problem.pruned) + pixel * channels;
            auto sum = [&](const Bits* from, int64_t p, int64_t r) {
                float total = 0.0f;
                for (int64_t c = r * run; c < std::min((r + 1) * run, channels); ++c)
                    total += magnitude<Format>(from[p * channels + c]);
                return total;
            };
            for (int64_t p = 0; p < count; ++p)
                for (int64_t r = 0; r < runs; ++r) dense[p * runs + r] = sum(grad, p, r);
            prune_groups<Format>(problem, pixel * per_pixel, (pixel + count) * per_pixel);
            for (int64_t p = 0; p < count; ++p)
                for (int64_t r = 0; r < runs; ++r) {
                    const float ratio = ratio_of(dense[p * runs + r], sum(pruned, p, r));
                    for (int64_t c = r * run; c < std::min((r + 1) * run, channels); ++c)
                        pruned[p * channels + c] = rescaled<Format>(pruned[p * channels + c], ratio);
                }
        }
    }
}

// Ratio per (sample, channel): a sample is pruned and summed, then multiplied while it is still in cache.
template <class Format>
void prune_and_rescale_samples(const Problem& problem) {
    const int64_t channels = problem.channels;
#pragma omp parallel num_threads(problem.threads)
    {
        std::vector<float> sums(static_cast<std::size_t>(4 * channels));
#pragma omp for schedule(static)
        for (int64_t sample = 0; sample < problem.samples; ++sample) {
            std::fill(sums.begin(), sums.end(), 0.0f);
            prune_and_sum<Format>(problem, sample * problem.pixels, problem.pixels, sums.data());
            for (int64_t c = 0; c < channels; ++c) sums[c] = ratio_of(sums[c], sums[channels + c]);
            multiply_channels<Format>(problem, sample * problem.pixels, problem.pixels, sums.data());
        }
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
        case scope_none: return prune_blocks<Format>(problem);
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

// "OpenMP" when the library runs on several threads, and the width of its vectors in bits.
extern "C" int pdt_has_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}
extern "C" int pdt_vector_bits() { return 8 * pdt::vector_bytes; }
