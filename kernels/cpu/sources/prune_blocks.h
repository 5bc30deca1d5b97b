// Pruning of a run of groups, by magnitude or at random. There are fast paths for m = 2, 4, 8, 16 and 32 if m divides the
// channels, and one path for all other cases (other m, a short last group).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {

// A gradient in channels-last order. `pruned` may be `grad`.
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

// First element and size of a group.
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

// Groups first .. last - 1, counted over (sample, pixel, group of the pixel), with their source and destination. If
// `streaming` is set, `to` is aligned to vectors and written past the caches.
template <class Format>
struct Run {
    using Bits = typename Format::Bits;
    int64_t first, last;
    const Bits* from;
    Bits* to;
    bool streaming;
};

// ---- magnitude ----

// A tile consists of lanes<Bits> consecutive groups of M channels, in M vectors.
template <class Format, int M>
struct Tile {
    using Bits = typename Format::Bits;
    using Vec = Vector<Bits>;

    // Prunes a tile by magnitude; `to` may be `from`. The whole tile is loaded before anything is stored.
    template <bool Streaming>
    static HOST_DEVICE void prune(const Bits* from, Bits* to, int n) {
        if constexpr (M <= 4) {
            rank_and_store<Streaming>(from, to, n);
        } else {
            Vec sorted[M];
            UNROLL
            for (int i = 0; i < M; ++i) sorted[i] = key_of(load<Bits>(from + i * lanes<Bits>));
            deinterleave<Bits, M>(sorted);
            sort_descending<M>(sorted);  // the order of the channels does not matter
            const Vec threshold = sorted[n - 1];
            // If no group has equal keys on both sides of the cut, the threshold decides.
            if (n < M && equal_anywhere<Bits>(threshold, sorted[n]))
                break_ties<Streaming>(from, to, threshold, n);
            else
                store_reaching<Streaming>(from, to, threshold, std::make_index_sequence<M>{});
        }
    }

  private:
    static HOST_DEVICE Vec key_of(Vec value) {
        return magnitude_key(value, Lane<Vec>::splat(Format::without_sign), Lane<Vec>::splat(Format::infinity + 1));
    }

    // Converts to one vector per channel (lane = group), in the order of channels.
    static HOST_DEVICE void keys_by_channel(const Bits* from, Vec (&key)[M]) {
        Vec deinterleaved[M];
        UNROLL
        for (int i = 0; i < M; ++i) deinterleaved[i] = key_of(load<Bits>(from + i * lanes<Bits>));
        deinterleave<Bits, M>(deinterleaved);
        UNROLL
        for (int c = 0; c < M; ++c) key[c] = deinterleaved[reversed_bits(c, M)];
    }
    template <bool Streaming>
    static HOST_DEVICE void store_kept(const Bits* from, Bits* to, const Vec (&keep)[M]) {
        Vec mask[M];
        UNROLL
        for (int c = 0; c < M; ++c) mask[reversed_bits(c, M)] = keep[c];
        interleave<Bits, M>(mask);
        UNROLL
        for (int i = 0; i < M; ++i)
            write<Streaming>(to + i * lanes<Bits>, load<Bits>(from + i * lanes<Bits>) & mask[i]);
    }
    template <bool Streaming>
    static HOST_DEVICE void write(Bits* to, Vec value) {
        if constexpr (Streaming)
            stream<Bits>(to, value);
        else
            store<Bits>(to, value);
    }

    template <bool Streaming>
    static HOST_DEVICE void rank_and_store(const Bits* from, Bits* to, int n) {
        Vec key[M], keep[M];
        keys_by_channel(from, key);
        keep_largest<M>(key, n, keep);
        store_kept<Streaming>(from, to, keep);
    }

    // Not inlined, to leave all registers to the path without ties.
    template <bool Streaming>
    static __attribute__((noinline)) void break_ties(const Bits* from, Bits* to, Vec threshold, int n) {
        Vec key[M], keep[M];
        keys_by_channel(from, key);
        keep_by_threshold<M>(key, threshold, n, keep);
        store_kept<Streaming>(from, to, keep);
    }

    template <bool Streaming, std::size_t... Part>
    static HOST_DEVICE void store_reaching(const Bits* from, Bits* to, Vec threshold, std::index_sequence<Part...>) {
        (store_part<Streaming, Part>(from + Part * lanes<Bits>, to + Part * lanes<Bits>, threshold), ...);
    }
    template <bool Streaming, std::size_t Part>
    static HOST_DEVICE void store_part(const Bits* from, Bits* to, Vec threshold) {
        const Vec value = load<Bits>(from);
        const Vec bar = spread<M, Part>(threshold, std::make_index_sequence<lanes<Bits>>{});
        write<Streaming>(to, value & (key_of(value) >= bar));
    }
};

template <class Format, int M, bool Streaming>
void prune_whole_groups(const Problem& problem, Run<Format> run) {
    using Bits = typename Format::Bits;
    constexpr int tile_groups = lanes<Bits>, tile = tile_groups * M;
    for (; run.first + tile_groups <= run.last; run.first += tile_groups, run.from += tile, run.to += tile)
        Tile<Format, M>::template prune<Streaming>(run.from, run.to, problem.n);
    if (run.first < run.last) {
        Bits rest[tile] = {};
        const std::size_t bytes = static_cast<std::size_t>(run.last - run.first) * M * sizeof(Bits);
        std::memcpy(rest, run.from, bytes);
        Tile<Format, M>::template prune<false>(rest, rest, problem.n);
        std::memcpy(run.to, rest, bytes);
    }
}

// M is the smallest power of two that is at least m; missing channels of a group get the key -1, which ranks last.
template <class Format, int M>
void prune_any_groups(const Problem& problem, const Run<Format>& run) {
    using Bits = typename Format::Bits;
    const int64_t start = locate(problem, run.first).offset;
    for (int64_t first = run.first; first < run.last; first += lanes<Bits>) {
        const int count = static_cast<int>(std::min<int64_t>(lanes<Bits>, run.last - first));
        alignas(vector_bytes) Bits key_lane[M][lanes<Bits>], keep_lane[M][lanes<Bits>];
        std::memset(key_lane, 0xff, sizeof key_lane);
        Group group[lanes<Bits>];
        for (int lane = 0; lane < count; ++lane) {
            group[lane] = locate(problem, first + lane);
            group[lane].offset -= start;
            for (int c = 0; c < group[lane].size; ++c)
                key_lane[c][lane] = magnitude_key<Bits>(run.from[group[lane].offset + c], Format::without_sign,
                                                        static_cast<Bits>(Format::infinity + 1));
        }
        Vector<Bits> key[M], keep[M];
        std::memcpy(key, key_lane, sizeof key);
        keep_largest<M>(key, problem.n, keep);
        std::memcpy(keep_lane, keep, sizeof keep);
        for (int lane = 0; lane < count; ++lane)
            for (int c = 0; c < group[lane].size; ++c)
                run.to[group[lane].offset + c] =
                    static_cast<Bits>(run.from[group[lane].offset + c] & keep_lane[c][lane]);
    }
}

// ---- random ----

// Keep bits of a tile of whole groups; bit e belongs to element e. Each 16-bit lane has the bits of max(M, 8) consecutive
// elements, which is a whole number of Philox blocks and of groups.
template <int M>
struct RandomTile {
    static constexpr int lane_elements = M < 8 ? 8 : M, blocks = lane_elements / 8;
    static constexpr int elements = lanes<int16_t> * lane_elements;

    static HOST_DEVICE void keep_bits(uint64_t first_block, uint64_t seed, int n, uint8_t* bits) {
        using Key = Vector<int16_t>;
        Key kept[2] = {Key{}, Key{}}, needed;  // kept: elements 0 .. 15 and 16 .. 31 of a lane
        UNROLL
        for (int b = 0; b < blocks; ++b) {
            Key half[8];
            philox_halves(first_block + b, blocks, seed, half);
            UNROLL
            for (int i = 0; i < 8; ++i) {
                const int e = 8 * b + i;
                if (e % M == 0) needed = Lane<Key>::splat(n);
                kept[e / 16] |= keep_at_random(half[i], M - e % M, needed) & Lane<Key>::splat(1 << e % 16);
            }
        }
        if constexpr (blocks == 1) {
            const Bytes narrow = __builtin_convertvector(kept[0], Bytes);
            std::memcpy(bits, &narrow, sizeof narrow);
        } else if constexpr (blocks == 2) {
            std::memcpy(bits, &kept[0], sizeof kept[0]);
        } else {
            interleave<int16_t>(kept);
            std::memcpy(bits, kept, sizeof kept);
        }
    }
};

template <class Format, int M, bool Streaming>
void prune_whole_groups_at_random(const Problem& problem, Run<Format> run) {
    using Bits = typename Format::Bits;
    using Drawn = RandomTile<M>;
    // The first group starts at a whole Philox block.
    uint64_t block = static_cast<uint64_t>(run.first) * M / 8;
    int64_t left = (run.last - run.first) * M;
    for (; left > 0; left -= Drawn::elements, run.from += Drawn::elements, run.to += Drawn::elements) {
        uint8_t bits[Drawn::elements / 8];
        Drawn::keep_bits(block, problem.seed, problem.n, bits);
        block += Drawn::elements / 8;
        if (left >= Drawn::elements) {
            UNROLL
            for (int e = 0; e < Drawn::elements; e += lanes<Bits>) {
                const Vector<Bits> kept = keep_where<Bits>(bits, e, load<Bits>(run.from + e));
                if constexpr (Streaming)
                    stream<Bits>(run.to + e, kept);
                else
                    store<Bits>(run.to + e, kept);
            }
        } else {
            for (int64_t e = 0; e < left; ++e) run.to[e] = (bits[e / 8] >> (e % 8)) & 1u ? run.from[e] : Bits{0};
        }
    }
}

template <class Format>
void prune_any_groups_at_random(const Problem& problem, const Run<Format>& run) {
    using Bits = typename Format::Bits;
    const int64_t start = locate(problem, run.first).offset;
    const uint64_t m = static_cast<uint64_t>(problem.m);
    uint64_t drawn = ~uint64_t{0};
    PhiloxBlock<uint64_t> block{};
    for (int64_t index = run.first; index < run.last; ++index) {
        const Group group = locate(problem, index);
        int32_t needed = std::min(problem.n, group.size);
        for (int c = 0; c < group.size; ++c) {
            const uint64_t number = static_cast<uint64_t>(index) * m + static_cast<uint64_t>(c);
            if (number / 8 != drawn) {
                drawn = number / 8;
                block = philox4x32(drawn, problem.seed);
            }
            const int32_t half = static_cast<int32_t>((block.word[number % 8 / 2] >> (16 * (number % 2))) & 0xffffu);
            const int32_t keep = keep_at_random(half, group.size - c, needed);
            const int64_t place = group.offset - start + c;
            run.to[place] = static_cast<Bits>(run.from[place] & static_cast<Bits>(keep));
        }
    }
}

// ---- selection of the path ----

template <class Format, int M>
void prune_with(const Problem& problem, const Run<Format>& run) {
    const bool whole = problem.whole_groups() && problem.m == M;
    if (problem.mode == 0) {
        if (!whole) return prune_any_groups<Format, M>(problem, run);
        return run.streaming ? prune_whole_groups<Format, M, true>(problem, run)
                             : prune_whole_groups<Format, M, false>(problem, run);
    }
    if (!whole || run.first * M % 8 != 0) return prune_any_groups_at_random<Format>(problem, run);
    return run.streaming ? prune_whole_groups_at_random<Format, M, true>(problem, run)
                         : prune_whole_groups_at_random<Format, M, false>(problem, run);
}

template <class Format>
void prune_run(const Problem& problem, const Run<Format>& run) {
    if (problem.m <= 2) return prune_with<Format, 2>(problem, run);
    if (problem.m <= 4) return prune_with<Format, 4>(problem, run);
    if (problem.m <= 8) return prune_with<Format, 8>(problem, run);
    if (problem.m <= 16) return prune_with<Format, 16>(problem, run);
    return prune_with<Format, 32>(problem, run);
}

}  // namespace pdt
