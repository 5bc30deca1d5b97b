// Slow kernels for all cases that the fast ones do not support: m that is not a power of two, a short last group, memory
// that is not aligned. `grad` and `pruned` must be different tensors.
#pragma once

#include "unit.cuh"

namespace pdt {

// One group per thread. M is the smallest power of two that is at least m; missing channels of a group rank last.
template <class Format, int M, int N, int MODE, bool RESCALE>
__global__ void __launch_bounds__(256) prune_any(const typename Format::Bits* grad, typename Format::Bits* pruned,
                                                 int64_t groups, int channels, int m,
                                                 const uint64_t* seed_memory, uint64_t seed) {
    using Bits = typename Format::Bits;
    const int64_t group = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (group >= groups) return;
    const int groups_per_pixel = (channels + m - 1) / m;
    const int channel = static_cast<int>(group % groups_per_pixel) * m;
    const int size = channels - channel < m ? channels - channel : m;
    const int64_t first = group / groups_per_pixel * channels + channel;
    Bits value[M];
    int32_t keep[M];
    UNROLL
    for (int i = 0; i < M; ++i) value[i] = i < size ? grad[first + i] : Bits{0};
    if constexpr (MODE == mode_random) {
        const uint64_t key = read_seed(seed_memory, seed);
        uint64_t drawn = ~uint64_t{0};
        PhiloxBlock<uint64_t> block{};
        int32_t needed = N < size ? N : size;
        UNROLL
        for (int i = 0; i < M; ++i) {
            const uint64_t number = static_cast<uint64_t>(group) * m + i;
            if (number / 8 != drawn) {
                drawn = number / 8;
                block = philox4x32(drawn, key);
            }
            // Selected by comparison, because an index known only at run time would put the block into local memory.
            const int place = static_cast<int>(number % 8 / 2);
            const uint64_t low = place & 1 ? block.word[1] : block.word[0];
            const uint64_t high = place & 1 ? block.word[3] : block.word[2];
            const uint32_t word = static_cast<uint32_t>(place & 2 ? high : low);
            keep[i] = keep_at_random(static_cast<int32_t>(number % 2 ? word >> 16 : word & 0xffffu), size - i, needed);
        }
    } else {
        bool sampled = false;
        if constexpr (MODE == mode_unbiased) {
            const PhiloxBlock<uint64_t> block = philox4x32(static_cast<uint64_t>(group) / 4, read_seed(seed_memory, seed));
            sampled = sample_group<Format, M>(value, N, uniform_of_group(block, static_cast<uint64_t>(group)));
        }
        if (sampled) {
            UNROLL
            for (int i = 0; i < M; ++i) keep[i] = -1;
        } else {
            int32_t key[M];
            UNROLL
            for (int i = 0; i < M; ++i)
                key[i] = i < size ? magnitude_key<int32_t>(value[i], Format::without_sign, Format::infinity + 1) : -1;
            keep_largest<M>(key, N, keep);
        }
    }
    float dense = 0.0f, kept = 0.0f;
    UNROLL
    for (int i = 0; i < M; ++i) {
        dense += Format::decode(static_cast<Bits>(value[i] & Format::without_sign));
        value[i] = static_cast<Bits>(value[i] & keep[i]);
        kept += Format::decode(static_cast<Bits>(value[i] & Format::without_sign));
    }
    const float ratio = ratio_of(dense, kept);
    UNROLL
    for (int i = 0; i < M; ++i) {
        if (i >= size) continue;
        const bool rescaled = RESCALE && (value[i] & Format::without_sign) != 0;
        pruned[first + i] = rescaled ? Format::encode(Format::decode(value[i]) * ratio) : value[i];
    }
}

// Computes sums[part][dense, kept][output] over the elements first + j * stride, with first = output / width * jump +
// output % width and the j of one part. `finish_channels` adds the parts.
template <class Format>
__global__ void __launch_bounds__(256)
    sum_any(const typename Format::Bits* grad, const typename Format::Bits* pruned, float* sums, int64_t outputs,
            int64_t parts, int64_t width, int64_t jump, int64_t count, int64_t count_of_part, int64_t stride) {
    using Bits = typename Format::Bits;
    const int64_t thread = int64_t{blockIdx.x} * 256 + threadIdx.x, part = thread / outputs, output = thread % outputs;
    if (part >= parts) return;
    const int64_t first = output / width * jump + output % width;
    const int64_t last = (part + 1) * count_of_part < count ? (part + 1) * count_of_part : count;
    float dense = 0.0f, kept = 0.0f;
    for (int64_t j = part * count_of_part; j < last; ++j) {
        dense += Format::decode(static_cast<Bits>(grad[first + j * stride] & Format::without_sign));
        kept += Format::decode(static_cast<Bits>(pruned[first + j * stride] & Format::without_sign));
    }
    sums[2 * part * outputs + output] = dense;
    sums[(2 * part + 1) * outputs + output] = kept;
}

// Multiplies element i by ratio[i / jump * width + (by_row ? 0 : i % width)].
template <class Format>
__global__ void __launch_bounds__(256) multiply_any(typename Format::Bits* pruned, const float* ratio,
                                                    int64_t elements, int64_t width, int64_t jump, int by_row) {
    using Bits = typename Format::Bits;
    const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (i >= elements) return;
    const Bits bits = pruned[i];
    if ((bits & Format::without_sign) == 0) return;
    const float factor = ratio[by_row ? i / jump : i / jump * width + i % width];
    pruned[i] = Format::encode(Format::decode(bits) * factor);
}

}  // namespace pdt
