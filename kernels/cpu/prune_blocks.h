// Pruning a run of groups, by magnitude or at random: fast paths for m = 2, 4, 8, 16, 32 that divide the channels, and
// one path for everything else (other m, a short last group).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {

// One gradient in channels-last order. `pruned` may be `grad`.
struct Problem {
    const void* grad;
    void* pruned;
    int64_t samples, pixels, channels;  // pixels of one sample; rows of a matrix are samples with one pixel
    int n, m, mode, scope;
    uint64_t seed;
    int threads;

    int64_t groups_per_pixel() const { return (channels + m - 1) / m; }
    int64_t groups() const { return samples * pixels * groups_per_pixel(); }
    bool whole_groups() const { return channels % m == 0; }
};

// A group's first element and its size.
struct Group {
    int64_t offset;
    int size;
};

inline Group locate(const Problem& problem, int64_t group) {
    const int64_t per_pixel = problem.groups_per_pixel();
    const int64_t pixel = group / per_pixel, channel = (group % per_pixel) * problem.m;
    return {pixel * problem.channels + channel,
            static_cast<int>(std::min<int64_t>(problem.m, problem.channels - channel))};
}

// ---- magnitude ----

template <class Format, int M>
void prune_whole_groups(const Problem& problem, int64_t first, int64_t last) {
    using Bits = typename Format::Bits;
    constexpr int tile_groups = lanes<Bits>, tile = tile_groups * M;
    const Bits* grad = static_cast<const Bits*>(problem.grad);
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    const Vector<Bits> without_sign = Lane<Vector<Bits>>::splat(Format::without_sign);
    const Vector<Bits> not_a_number = Lane<Vector<Bits>>::splat(Format::infinity + 1);
    for (; first + tile_groups <= last; first += tile_groups)
        prune_tile<Bits, M>(grad + first * M, pruned + first * M, problem.n, without_sign, not_a_number);
    if (first < last) {
        Bits rest[tile] = {};
        const std::size_t bytes = static_cast<std::size_t>(last - first) * M * sizeof(Bits);
        std::memcpy(rest, grad + first * M, bytes);
        prune_tile<Bits, M>(rest, rest, problem.n, without_sign, not_a_number);
        std::memcpy(pruned + first * M, rest, bytes);
    }
}

// M is the power of two at or above m; the channels that a group lacks get the key -1, which ranks last.
template <class Format, int M>
void prune_any_groups(const Problem& problem, int64_t first, int64_t last) {
    using Bits = typename Format::Bits;
    const Bits* grad = static_cast<const Bits*>(problem.grad);
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    while (first < last) {
        const int count = static_cast<int>(std::min<int64_t>(lanes<Bits>, last - first));
        alignas(vector_bytes) Bits key_lane[M][lanes<Bits>], keep_lane[M][lanes<Bits>];
        std::memset(key_lane, 0xff, sizeof key_lane);
        Group group[lanes<Bits>];
        for (int lane = 0; lane < count; ++lane) {
            group[lane] = locate(problem, first + lane);
            for (int c = 0; c < group[lane].size; ++c)
                key_lane[c][lane] = magnitude_key<Bits>(grad[group[lane].offset + c], Format::without_sign,
                                                        static_cast<Bits>(Format::infinity + 1));
        }
        Vector<Bits> key[M], keep[M];
        std::memcpy(key, key_lane, sizeof key);
        keep_largest<M>(key, problem.n, keep);
        std::memcpy(keep_lane, keep, sizeof keep);
        for (int lane = 0; lane < count; ++lane)
            for (int c = 0; c < group[lane].size; ++c)
                pruned[group[lane].offset + c] =
                    static_cast<Bits>(grad[group[lane].offset + c] & keep_lane[c][lane]);
        first += count;
    }
}

// ---- random ----

// Keep bits for `units` runs of max(M, 8) elements, bit e of a run for its element e. A run is a whole number of Philox
// blocks and of groups, so that one lane can do it alone.
template <int M>
struct RandomRun {
    static constexpr int elements = M < 8 ? 8 : M, blocks = elements / 8, units = 16;

    static HOST_DEVICE uint32_t keep_bits(uint64_t first_block, uint64_t seed, int n) {
        uint32_t bits = 0;
        int32_t needed = 0;
        UNROLL
        for (int b = 0; b < blocks; ++b) {
            const PhiloxBlock block = philox4x32_10(first_block + b, seed);
            UNROLL
            for (int i = 0; i < 8; ++i) {
                const int channel = (8 * b + i) % M;
                if (channel == 0) needed = n;
                const int32_t keep = keep_random(random_half(block, i), M - channel, needed);
                needed += keep;
                bits |= static_cast<uint32_t>(keep) & (1u << (8 * b + i));
            }
        }
        return bits;
    }
};

template <class Format, int M>
void prune_whole_groups_at_random(const Problem& problem, int64_t first, int64_t last) {
    using Bits = typename Format::Bits;
    using Run = RandomRun<M>;
    constexpr int units = Run::units, elements = Run::elements;
    const Bits* grad = static_cast<const Bits*>(problem.grad);
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    const uint64_t seed = problem.seed;
    const int n = problem.n;
    // A block of groups starts at a multiple of 32 elements (see block_groups), hence at a Philox block.
    for (int64_t element = first * M; element < last * M; element += units * elements) {
        const uint64_t first_block = static_cast<uint64_t>(element) / 8;
        uint32_t bits[units];
        for (int unit = 0; unit < units; ++unit)
            bits[unit] = Run::keep_bits(first_block + static_cast<uint64_t>(unit) * Run::blocks, seed, n);
        const int64_t count = std::min<int64_t>(units * elements, last * M - element);
        const Bits* from = grad + element;
        Bits* to = pruned + element;
        for (int unit = 0; unit * elements + elements <= count; ++unit) {
            const uint32_t run = bits[unit];
            for (int e = 0; e < elements; ++e) {
                const Bits mask = static_cast<Bits>(-static_cast<int32_t>((run >> e) & 1u));
                to[unit * elements + e] = static_cast<Bits>(from[unit * elements + e] & mask);
            }
        }
        for (int64_t e = count / elements * elements; e < count; ++e)
            to[e] = (bits[e / elements] >> (e % elements)) & 1u ? from[e] : Bits{0};
    }
}

template <class Format>
void prune_any_groups_at_random(const Problem& problem, int64_t first, int64_t last) {
    using Bits = typename Format::Bits;
    const Bits* grad = static_cast<const Bits*>(problem.grad);
    Bits* pruned = static_cast<Bits*>(problem.pruned);
    uint64_t number = static_cast<uint64_t>(first) * static_cast<uint64_t>(problem.m);
    PhiloxBlock block = philox4x32_10(number / 8, problem.seed);
    uint64_t drawn = number / 8;
    for (; first < last; ++first) {
        const Group group = locate(problem, first);
        int32_t needed = std::min(problem.n, group.size);
        for (int c = 0; c < group.size; ++c) {
            number = static_cast<uint64_t>(first) * static_cast<uint64_t>(problem.m) + static_cast<uint64_t>(c);
            if (number / 8 != drawn) {
                drawn = number / 8;
                block = philox4x32_10(drawn, problem.seed);
            }
            const int32_t keep = keep_random(random_half(block, static_cast<int>(number % 8)), group.size - c, needed);
            needed += keep;
            pruned[group.offset + c] = static_cast<Bits>(grad[group.offset + c] & static_cast<Bits>(keep));
        }
    }
}

// ---- choice of the path ----

template <class Format, int M>
void prune_with(const Problem& problem, int64_t first, int64_t last) {
    const bool whole = problem.whole_groups() && problem.m == M;
    if (problem.mode == 0)
        whole ? prune_whole_groups<Format, M>(problem, first, last) : prune_any_groups<Format, M>(problem, first, last);
    else
        whole && first * M % 8 == 0 ? prune_whole_groups_at_random<Format, M>(problem, first, last)
                                    : prune_any_groups_at_random<Format>(problem, first, last);
}

// Prunes groups first .. last - 1, counted over (sample, pixel, group of the pixel).
template <class Format>
void prune_groups(const Problem& problem, int64_t first, int64_t last) {
    if (problem.m <= 2) return prune_with<Format, 2>(problem, first, last);
    if (problem.m <= 4) return prune_with<Format, 4>(problem, first, last);
    if (problem.m <= 8) return prune_with<Format, 8>(problem, first, last);
    if (problem.m <= 16) return prune_with<Format, 16>(problem, first, last);
    return prune_with<Format, 32>(problem, first, last);
}

}  // namespace pdt
