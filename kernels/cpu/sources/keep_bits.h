// Pruning of a run of groups, by magnitude or at random. There are fast paths for m = 2, 4, 8, 16 and 32 if m divides the
// channels, and one path for all other cases (other m, a short last group).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {

// Position in MODES of kernels/prune/rule.py.
enum Mode { mode_magnitude = 0, mode_random = 1, mode_unbiased = 2 };

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

// A tile has at most 32 groups of 32 elements.
constexpr int keep_bits_padding = 32 * 32 / 8;

// The output of pruning: the pruned elements, the keep bits, or both.
enum class Output { values, streamed_values, keep_bits, values_and_keep_bits };

// Destination of a run of groups. `values` receives the elements, with zeros for the pruned ones; streamed values are
// aligned to vectors and written past the caches. Bit e of `keep_bits` tells whether element e is kept; complete tiles
// are written, which is up to `keep_bits_padding` bytes more than the run has.
template <class Format, Output What>
struct Target {
    using Bits = typename Format::Bits;
    using Vec = Vector<Bits>;
    static constexpr bool has_values = What != Output::keep_bits;
    static constexpr bool has_bits = What == Output::keep_bits || What == Output::values_and_keep_bits;
    Bits* values;
    uint8_t* keep_bits;

    // Writes one vector of elements, of which those with all ones in `keep` are kept.
    HOST_DEVICE void write(int64_t element, Vec value, Vec keep) const {
        if constexpr (has_values) write_kept(element, value & keep);
        if constexpr (has_bits) store_bits<Bits>(keep_bits, element, keep);
    }
    // Writes one vector of pruned values.
    HOST_DEVICE void write_kept(int64_t element, Vec kept) const {
        if constexpr (What == Output::streamed_values)
            stream<Bits>(values + element, kept);
        else
            store<Bits>(values + element, kept);
    }
    // Writes one element; the elements are written in ascending order.
    HOST_DEVICE void write_one(int64_t element, Bits value, Bits keep) const {
        if constexpr (has_values) values[element] = static_cast<Bits>(value & keep);
        if constexpr (has_bits) {
            const uint8_t before = element % 8 == 0 ? uint8_t{0} : keep_bits[element / 8];
            keep_bits[element / 8] = static_cast<uint8_t>(before | ((keep & 1) << element % 8));
        }
    }
    HOST_DEVICE void advance(int64_t elements) {
        if constexpr (has_values) values += elements;
        if constexpr (has_bits) keep_bits += elements / 8;
    }
    // The same destination, with the values in memory of the caller or without streaming.
    static constexpr Output unstreamed = What == Output::streamed_values ? Output::values : What;
    HOST_DEVICE Target<Format, unstreamed> with_values(Bits* place) const { return {place, keep_bits}; }
};

// Groups first .. last - 1, counted over (sample, pixel, group of the pixel), with their source and destination.
template <class Format, Output What>
struct Run {
    int64_t first, last;
    const typename Format::Bits* from;
    Target<Format, What> to;
};

// ---- magnitude ----

// A tile consists of lanes<Bits> consecutive groups of M channels, in M vectors.
template <class Format, int M>
struct Tile {
    using Bits = typename Format::Bits;
    using Vec = Vector<Bits>;

    // Prunes a tile by magnitude; the values may replace `from`. The whole tile is loaded before anything is stored.
    template <Output What>
    static HOST_DEVICE void prune(const Bits* from, const Target<Format, What>& to, int n) {
        if constexpr (What == Output::keep_bits && M >= 4 && has_mask_words) {
            if (n == 1) return keep_few<1>(from, to);
            if (n == 2) return keep_few<2>(from, to);
        }
        if constexpr (M <= 4) {
            rank_and_store(from, to, n);
        } else {
            Vec sorted[M];
            UNROLL
            for (int i = 0; i < M; ++i) sorted[i] = key_of(load<Bits>(from + i * lanes<Bits>));
            deinterleave<Bits, M>(sorted);
            sort_descending<M>(sorted);  // the order of the channels does not matter
            const Vec threshold = sorted[n - 1];
            // If no group has equal keys on both sides of the cut, the threshold decides.
            if (n < M && any_lane(threshold == sorted[n]))
                break_ties(from, to, threshold, n);
            else
                store_reaching(from, to, threshold, std::make_index_sequence<M>{});
        }
    }

  private:
    // Writes the keep bits of the N largest of each group.
    template <int N>
    static HOST_DEVICE void keep_few(const Bits* from, const Target<Format, Output::keep_bits>& to) {
        Vec largest[M][N];
        UNROLL
        for (int i = 0; i < M; ++i) largest[i][0] = key_of(load<Bits>(from + i * lanes<Bits>));
        find_largest<N, M, 1>(largest);
        constexpr std::make_index_sequence<M> all{};
        const KeepWords reach = reaching<false>(from, largest[0][N - 1], all);
        int kept = 0;
        UNROLL
        for (int i = 0; i < M; ++i) kept += __builtin_popcount(reach.word[i]);
        // If some group has equal keys on both sides of the cut, too many reach the threshold.
        if (kept == N * lanes<Bits>)
            std::memcpy(to.keep_bits, reach.word, sizeof reach.word);
        else if (M <= 4)
            rank_and_store(from, to, N);
        else
            keep_lowest<N>(reach, reaching<true>(from, largest[0][N - 1], all), to.keep_bits);
    }
    struct KeepWords {
        MaskWord<Bits> word[M];
    };
    // Keeps the larger ones of each group, and the lowest of those that reach the threshold.
    template <int N>
    static __attribute__((noinline)) void keep_lowest(const KeepWords& reach, const KeepWords& larger, uint8_t* keep_bits) {
        constexpr int words = M * lanes<Bits> <= 64 ? 1 : M * lanes<Bits> / 64;
        uint64_t all[words] = {}, keep[words] = {};
        std::memcpy(all, reach.word, sizeof reach.word);
        std::memcpy(keep, larger.word, sizeof larger.word);
        for (int first = 0; first < M * lanes<Bits>; first += M) {
            const uint64_t group = (~uint64_t{0} >> (64 - M)) << first % 64, chosen = keep[first / 64] & group;
            const uint64_t lowest = all[first / 64] & group & ~chosen, others = lowest & (lowest - 1);
            const int room = N - __builtin_popcountll(chosen);
            if (room == 1) keep[first / 64] |= lowest ^ others;
            if (room == 2) keep[first / 64] |= lowest ^ (others & (others - 1));
        }
        std::memcpy(keep_bits, keep, sizeof reach.word);
    }
    // The first Count entries have the Found largest keys of 1 / Count of the elements of each group, in descending order.
    template <int N, int Count, int Found>
    static HOST_DEVICE void find_largest(Vec (&largest)[M][N]) {
        if constexpr (Count > 1) {
            constexpr int more = Found < N ? 2 * Found : N;
            UNROLL
            for (int i = 0; i < Count / 2; ++i) {
                Vec even[Found], odd[Found];
                UNROLL
                for (int k = 0; k < Found; ++k)
                    split_pairs<Count == M || (Count == 2 && group_is_vectors)>(largest[2 * i][k], largest[2 * i + 1][k],
                                                                               even[k], odd[k]);
                const Vec smaller = even[0] < odd[0] ? even[0] : odd[0];
                largest[i][0] = even[0] < odd[0] ? odd[0] : even[0];
                if constexpr (N == 2 && Found == 1) largest[i][1] = smaller;
                if constexpr (N == 2 && Found == 2) {
                    const Vec second = even[1] < odd[1] ? odd[1] : even[1];
                    largest[i][1] = second < smaller ? smaller : second;
                }
            }
            find_largest<N, Count / 2, more>(largest);
        }
    }
    // Whether a group has several vectors.
    static constexpr bool group_is_vectors = M > lanes<Bits>;
    // Separates neighbours. Neighbours of 16 bits are in one word of 32 bits, where shifts are faster than permutations;
    // afterwards the words of the first vector are in the lower halves and those of the second one in the upper halves.
    // They belong to different groups if a group has one vector. Otherwise both halves of a word belong to one group until
    // the last step separates them.
    template <bool Halves>
    static HOST_DEVICE void split_pairs(Vec a, Vec b, Vec& even, Vec& odd) {
        using Words = Vector<uint32_t>;
        using Sequence = std::make_index_sequence<lanes<uint32_t>>;
        if constexpr (Halves && sizeof(Bits) == 2) {
            even = (Vec)(((Words)a & 0xffffu) | ((Words)b << 16));
            odd = (Vec)(((Words)a >> 16) | ((Words)b & 0xffff0000u));
        } else {
            even = (Vec)even_lanes((Words)a, (Words)b, Sequence{});
            odd = (Vec)odd_lanes((Words)a, (Words)b, Sequence{});
        }
    }
    // Returns which elements reach the threshold of their group, or are larger.
    template <bool Larger, std::size_t... Part>
    static HOST_DEVICE KeepWords reaching(const Bits* from, Vec threshold, std::index_sequence<Part...>) {
        return {{reaching_part<Larger, Part>(from, threshold, std::make_index_sequence<lanes<Bits>>{})...}};
    }
    template <bool Larger, std::size_t Part, std::size_t... I>
    static HOST_DEVICE MaskWord<Bits> reaching_part(const Bits* from, Vec threshold, std::index_sequence<I...>) {
        constexpr auto place = [](int element) {
            const int group = (static_cast<int>(Part) * lanes<Bits> + element) / M;
            if (sizeof(Bits) == 4) return group;
            // The last step of `find_largest` has put the second half of the groups into the upper halves of words.
            if (group_is_vectors) return 2 * (group % (lanes<Bits> / 2)) + group / (lanes<Bits> / 2);
            // The first step has put the groups of every second vector there.
            return 2 * (static_cast<int>(Part) / 2 * (lanes<Bits> / M) + element / M) + static_cast<int>(Part) % 2;
        };
        const Vec bar = __builtin_shufflevector(threshold, threshold, place(I)...);
        const Vec key = key_of(load<Bits>(from + Part * lanes<Bits>));
        if (Larger) return static_cast<MaskWord<Bits>>(~at_least<Bits>(bar, key));
        return at_least<Bits>(key, bar);
    }

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
    template <Output What>
    static HOST_DEVICE void store_kept(const Bits* from, const Target<Format, What>& to, const Vec (&keep)[M]) {
        Vec mask[M];
        UNROLL
        for (int c = 0; c < M; ++c) mask[reversed_bits(c, M)] = keep[c];
        interleave<Bits, M>(mask);
        UNROLL
        for (int i = 0; i < M; ++i)
            to.write(i * lanes<Bits>, load<Bits>(from + i * lanes<Bits>), mask[i]);
    }

    template <Output What>
    static HOST_DEVICE void rank_and_store(const Bits* from, const Target<Format, What>& to, int n) {
        Vec key[M], keep[M];
        keys_by_channel(from, key);
        keep_largest<M>(key, n, keep);
        store_kept(from, to, keep);
    }

    // Not inlined, to leave all registers to the path without ties.
    template <Output What>
    static __attribute__((noinline)) void break_ties(const Bits* from, const Target<Format, What>& to, Vec threshold,
                                                     int n) {
        Vec key[M], keep[M];
        keys_by_channel(from, key);
        keep_by_threshold<M>(key, threshold, n, keep);
        store_kept(from, to, keep);
    }

    template <Output What, std::size_t... Part>
    static HOST_DEVICE void store_reaching(const Bits* from, const Target<Format, What>& to, Vec threshold,
                                           std::index_sequence<Part...>) {
        (store_part<Part>(from, to, threshold), ...);
    }
    template <std::size_t Part, Output What>
    static HOST_DEVICE void store_part(const Bits* from, const Target<Format, What>& to, Vec threshold) {
        const Vec value = load<Bits>(from + Part * lanes<Bits>);
        const Vec bar = spread<M, Part>(threshold, std::make_index_sequence<lanes<Bits>>{});
        to.write(Part * lanes<Bits>, value, key_of(value) >= bar);
    }
};

template <class Format, int M, Output What>
void prune_whole_groups(const Problem& problem, Run<Format, What> run) {
    using Bits = typename Format::Bits;
    constexpr int tile_groups = lanes<Bits>, tile = tile_groups * M;
    for (; run.first + tile_groups <= run.last; run.first += tile_groups, run.from += tile, run.to.advance(tile))
        Tile<Format, M>::prune(run.from, run.to, problem.n);
    if (run.first < run.last) {
        Bits rest[tile] = {};
        const std::size_t bytes = static_cast<std::size_t>(run.last - run.first) * M * sizeof(Bits);
        std::memcpy(rest, run.from, bytes);
        Tile<Format, M>::prune(rest, run.to.with_values(rest), problem.n);
        if constexpr (Target<Format, What>::has_values) std::memcpy(run.to.values, rest, bytes);
    }
}

// M is the smallest power of two that is at least m; missing channels of a group get the key -1, which ranks last.
template <class Format, int M, Output What>
void prune_any_groups(const Problem& problem, const Run<Format, What>& run) {
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
                run.to.write_one(group[lane].offset + c, run.from[group[lane].offset + c], keep_lane[c][lane]);
    }
}

// ---- random ----

// Keep bits of a tile of whole groups; bit e belongs to element e. Each 16-bit lane has the bits of max(M, 8) consecutive
// elements, which is a whole number of Philox blocks and of groups.
template <int M>
struct RandomTile {
    static constexpr int lane_elements = M < 8 ? 8 : M, blocks = lane_elements / 8;
    static constexpr int elements = lanes<int16_t> * lane_elements;
    static_assert(elements / 8 <= keep_bits_padding);

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

template <class Format, int M, Output What>
void prune_whole_groups_at_random(const Problem& problem, Run<Format, What> run) {
    using Bits = typename Format::Bits;
    using Drawn = RandomTile<M>;
    // The first group starts at a whole Philox block.
    uint64_t block = static_cast<uint64_t>(run.first) * M / 8;
    int64_t left = (run.last - run.first) * M;
    for (; left > 0; left -= Drawn::elements, run.from += Drawn::elements, run.to.advance(Drawn::elements)) {
        uint8_t bits[Drawn::elements / 8];
        Drawn::keep_bits(block, problem.seed, problem.n, bits);
        block += Drawn::elements / 8;
        if constexpr (Target<Format, What>::has_bits) std::memcpy(run.to.keep_bits, bits, sizeof bits);
        if constexpr (Target<Format, What>::has_values) {
            if (left >= Drawn::elements) {
                UNROLL
                for (int e = 0; e < Drawn::elements; e += lanes<Bits>)
                    run.to.write_kept(e, keep_where<Bits>(bits, e, load<Bits>(run.from + e)));
            } else {
                for (int64_t e = 0; e < left; ++e)
                    run.to.values[e] = (bits[e / 8] >> (e % 8)) & 1u ? run.from[e] : Bits{0};
            }
        }
    }
}

template <class Format, Output What>
void prune_any_groups_at_random(const Problem& problem, const Run<Format, What>& run) {
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
            run.to.write_one(place, run.from[place], static_cast<Bits>(keep));
        }
    }
}

}  // namespace pdt
