// n:m pruning of a gradient on the CPU and its rescaling, as one C function (called through ctypes).
//
// Work is divided into blocks whose size does not depend on the number of threads, and sums are added in block order. The
// result is therefore bit-identical for every number of threads.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "channel_sums.h"
#include "group_ratio.h"
#include "prune_blocks.h"

namespace pdt {
namespace {

enum Scope { scope_none = 0, scope_group = 1, scope_sample_channel = 2, scope_channel = 3, scope_row = 4 };

constexpr int64_t block_elements = 16384;  // both copies of a block stay in the second-level cache
constexpr int64_t chunk_elements = 2048;   // both copies of a chunk stay in the first-level cache
constexpr int64_t short_sum = 256;         // terms that are added sequentially; a long sum is a sum of short ones
constexpr int64_t chunk_least_pixels = 16;  // the same for sums over pixels
constexpr int64_t streaming_bytes = int64_t{16} << 20;  // a result that exceeds common last-level caches

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

// Uses a mask for the same reason as `select`.
template <class Format>
HOST_DEVICE typename Format::Bits rescaled(typename Format::Bits bits, float ratio) {
    using Bits = typename Format::Bits;
    const Bits product = Format::encode(Format::decode(bits) * ratio);
    const Bits nonzero = static_cast<Bits>(-static_cast<int32_t>((bits & Format::without_sign) != 0));
    return static_cast<Bits>((product & nonzero) | (bits & ~nonzero));
}

// A result that exceeds the caches is written past them; a smaller one should stay there for its next read.
template <class Format>
bool worth_streaming(const Problem& problem) {
    const int64_t elements = problem.samples * problem.pixels * problem.channels;
    return problem.pruned != problem.grad &&
           elements * static_cast<int64_t>(sizeof(typename Format::Bits)) >= streaming_bytes &&
           reinterpret_cast<uintptr_t>(problem.pruned) % vector_bytes == 0;
}

// Prunes whole pixels into `to`, which replaces the result of the problem.
template <class Format>
void prune_pixels(const Problem& problem, int64_t first, int64_t count, typename Format::Bits* to) {
    using Bits = typename Format::Bits;
    const int64_t per_pixel = problem.groups_per_pixel();
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first * problem.channels;
    prune_run<Format>(problem, {first * per_pixel, (first + count) * per_pixel, grad, to, false});
}

template <class Format>
void prune_without_rescaling(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t groups = problem.groups();
    // A multiple of 64 groups, so that a block starts at a whole vector of groups and at a whole Philox block.
    const int64_t block_groups = std::max<int64_t>(64, block_elements / problem.m / 64 * 64);
    const int64_t blocks = (groups + block_groups - 1) / block_groups;
    const bool streaming = worth_streaming<Format>(problem);
#pragma omp parallel num_threads(problem.threads)
    {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < blocks; ++block) {
            const int64_t first = block * block_groups, offset = locate(problem, first).offset;
            prune_run<Format>(problem, {first, std::min(groups, first + block_groups),
                                        static_cast<const Bits*>(problem.grad) + offset,
                                        static_cast<Bits*>(problem.pruned) + offset, streaming});
        }
        finish_streaming();
    }
}

// Sums the magnitudes of each run (a group, or a whole row) of `pixels` pixels.
void sum_runs(const float* magnitudes, int64_t pixels, int64_t channels, int64_t run, float* sums) {
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

// Ratio per group, for whole groups whose size is a power of two. A block is pruned into memory of its thread.
template <class Format>
void prune_and_rescale_groups(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t groups = problem.groups(), block_groups = chunk_elements / problem.m;
    const int64_t blocks = (groups + block_groups - 1) / block_groups;
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        alignas(vector_bytes) Bits scratch[chunk_elements];
        const int64_t first = block * block_groups, last = std::min(groups, first + block_groups);
        const Bits* grad = static_cast<const Bits*>(problem.grad) + first * problem.m;
        prune_run<Format>(problem, {first, last, grad, scratch, false});
        rescale_groups_of<Format>(problem.m, grad, scratch, static_cast<Bits*>(problem.pruned) + first * problem.m,
                                  (last - first) * problem.m);
    }
}

// Ratio per run of elements (a group, or a row). A chunk is summed, pruned, summed again and multiplied in the cache.
template <class Format>
void prune_and_rescale_runs(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels;
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
        prune_pixels<Format>(problem, pixel, pixels, pruned);
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

// Prunes `pixels` pixels from `first_pixel` into `to`, and adds their sums of magnitudes before and after to `sums`. Each
// chunk is summed separately, since it is in the cache and short partial sums lose fewer bits. `to` may be the gradient
// itself; therefore a chunk is summed before it is pruned.
template <class Format>
void prune_and_sum(const Problem& problem, const ChannelSums<Format>& shape, int64_t first_pixel, int64_t pixels,
                   typename Format::Bits* to, Vector<float>* sums) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels;
    const int64_t chunk_pixels = std::max(chunk_least_pixels, chunk_elements / channels);
    const Bits* grad = static_cast<const Bits*>(problem.grad) + first_pixel * channels;
    for (int64_t pixel = 0; pixel < pixels; pixel += chunk_pixels) {
        const int64_t count = std::min(chunk_pixels, pixels - pixel);
        add_magnitudes<Format>(shape, grad + pixel * channels, count, shape.dense(sums));
        prune_pixels<Format>(problem, first_pixel + pixel, count, to + pixel * channels);
        add_magnitudes<Format>(shape, to + pixel * channels, count, shape.kept(sums));
    }
}

// Ratio per (sample, channel): a sample is pruned and summed, then multiplied while it is in the cache. (Pruning into
// memory of the thread and streaming the product was slower, since reads and writes then alternate.)
template <class Format>
void prune_and_rescale_samples(const Problem& problem) {
    using Bits = typename Format::Bits;
    const ChannelSums<Format> shape(problem.channels);
    VectorMemory sums_of_threads(problem.threads * shape.vectors);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t sample = 0; sample < problem.samples; ++sample) {
        Vector<float>* sums = sums_of_threads.part(thread_index(), shape.vectors);
        Bits* pixels = static_cast<Bits*>(problem.pruned) + sample * problem.pixels * problem.channels;
        shape.clear(sums);
        prune_and_sum<Format>(problem, shape, sample * problem.pixels, problem.pixels, pixels, sums);
        shape.divide(sums);
        multiply_pixels<Format>(shape, pixels, problem.pixels, shape.dense(sums));
    }
}

// Ratio per channel over the whole batch: every element is written before the first ratio is known.
template <class Format>
void prune_and_rescale_batch(const Problem& problem) {
    using Bits = typename Format::Bits;
    const int64_t channels = problem.channels, all_pixels = problem.samples * problem.pixels;
    const int64_t block_pixels = std::max<int64_t>(1, 8 * block_elements / channels);
    const int64_t blocks = (all_pixels + block_pixels - 1) / block_pixels;
    const ChannelSums<Format> shape(channels);
    VectorMemory sums_of_blocks(blocks * shape.vectors);
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    const auto pixels_of = [&](int64_t block) { return std::min(block_pixels, all_pixels - block * block_pixels); };
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        Vector<float>* sums = sums_of_blocks.part(block, shape.vectors);
        shape.clear(sums);
        prune_and_sum<Format>(problem, shape, block * block_pixels, pixels_of(block),
                              pruned + block * block_pixels * channels, sums);
    }
    Vector<float>* total = sums_of_blocks.part(0, shape.vectors);
    for (int64_t block = 1; block < blocks; ++block) shape.add(total, sums_of_blocks.part(block, shape.vectors));
    shape.divide(total);
#pragma omp parallel for schedule(static) num_threads(problem.threads)
    for (int64_t block = 0; block < blocks; ++block) {
        Bits* pixels = pruned + block * block_pixels * channels;
        multiply_pixels<Format>(shape, pixels, pixels_of(block), shape.dense(total));
    }
}

template <class Format>
void prune(const Problem& problem) {
    switch (problem.scope) {
        case scope_none: return prune_without_rescaling<Format>(problem);
        case scope_sample_channel: return prune_and_rescale_samples<Format>(problem);
        case scope_channel: return prune_and_rescale_batch<Format>(problem);
        case scope_group:
            if (problem.whole_groups() && (problem.m & (problem.m - 1)) == 0)
                return prune_and_rescale_groups<Format>(problem);
            return prune_and_rescale_runs<Format>(problem);
        default: return prune_and_rescale_runs<Format>(problem);
    }
}

}  // namespace
}  // namespace pdt

// Returns 0, or 1 if an argument is out of range, 2 if the memory for the sums cannot be allocated.
// format: 0 fp32, 1 bf16, 2 fp16. mode and scope: position in MODES and SCOPES of kernels/prune/rule.py; the scope that
// follows them (pdt::scope_row) sums over each row of a matrix.
extern "C" int pdt_prune_nm(const void* grad, void* pruned, int64_t samples, int64_t pixels, int64_t channels, int n,
                            int m, int format, int mode, int scope, uint64_t seed, int threads) {
    const bool valid = samples >= 0 && pixels >= 0 && channels >= 0 && m >= 2 && m <= 32 && n >= 1 && n <= m &&
                       format >= 0 && format <= 2 && mode >= 0 && mode <= 1 && scope >= 0 && scope <= 4 && threads >= 1;
    if (!valid) return 1;
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

// Properties of the compiled library, for the report: support of several threads, and width of vectors.
extern "C" int pdt_has_openmp() {
#if defined(_OPENMP)
    return 1;
#else
    return 0;
#endif
}
extern "C" int pdt_vector_bits() { return 8 * pdt::vector_bytes; }
