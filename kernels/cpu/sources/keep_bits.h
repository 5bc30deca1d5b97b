// Which elements of a run of groups are kept, by magnitude or at random: one bit per element. Groups of 2, 4, 8, 16 and 32
// channels have fast paths. Magnitudes of other groups are padded with zeros, which rank last, to the next of these sizes;
// random masks of other groups are drawn channel by channel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

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
    int64_t groups_per_pixel = (channels + m - 1) / m;
    int padded = padded_size(m);
    bool whole_groups = channels % m == 0, fast_groups = whole_groups && m == padded;

    int64_t groups() const { return samples * pixels * groups_per_pixel; }
    // First element of a group, counted over (sample, pixel, group of the pixel).
    int64_t offset(int64_t group) const {
        if (whole_groups) return group * m;
        return group / groups_per_pixel * channels + group % groups_per_pixel * m;
    }

  private:
    // Size of the groups of the fast path: the smallest power of two that is at least m.
    static int padded_size(int m) {
        int size = 2;
        while (size < m) size *= 2;
        return size;
    }
};

// A tile has at most 32 groups of 32 elements, and its keep bits are written as a whole.
constexpr int keep_bits_padding = 32 * 32 / 8;

// Elements, padding included, that fit into the memory of a function.
constexpr int64_t batch_elements = 2048;

// Calls work(padded, element, count) for each run of elements of the groups first .. last - 1 that stay neighbours when
// all groups are padded: the places of its first element with and without padding.
template <class Work>
void for_neighbours(const Problem& problem, int64_t first, int64_t last, const Work& work) {
    if (problem.fast_groups) return work(int64_t{0}, int64_t{0}, (last - first) * problem.m);
    int64_t channel = first % problem.groups_per_pixel * problem.m, element = 0;
    for (int64_t group = 0; group < last - first; ++group) {
        const int64_t count = std::min<int64_t>(problem.m, problem.channels - channel);
        work(group * problem.padded, element, count);
        element += count;
        channel = channel + count < problem.channels ? channel + count : 0;
    }
}

// Calls `work` with the size of the groups of a fast path as a constant.
template <class Work>
auto with_size(int size, const Work& work) {
    switch (size) {
        case 2: return work(std::integral_constant<int, 2>{});
        case 4: return work(std::integral_constant<int, 4>{});
        case 8: return work(std::integral_constant<int, 8>{});
        case 16: return work(std::integral_constant<int, 16>{});
        default: return work(std::integral_constant<int, 32>{});
    }
}

// Returns `count` keep bits from bit `first` on; reads 8 bytes.
inline uint64_t bits_from(const uint8_t* bits, int64_t first, int count) {
    uint64_t word;
    std::memcpy(&word, bits + first / 8, sizeof word);
    return word >> first % 8 & ((uint64_t{1} << count) - 1);
}

// Writes at most 32 keep bits behind those that are written; writes 8 bytes.
inline void append_bits(uint8_t* bits, int64_t first, uint64_t word) {
    word <<= first % 8;
    if (first % 8 != 0) word |= bits[first / 8];
    std::memcpy(bits + first / 8, &word, sizeof word);
}

// ---- magnitude ----

// A tile consists of lanes<Bits> consecutive groups of M channels, in M vectors.
template <class Bits, int M>
struct Tile {
    using Vec = Vector<Bits>;
    static constexpr int elements = M * lanes<Bits>;
    static constexpr std::make_index_sequence<M> all{};

    const Bits* from;
    Bits not_a_number;  // the key of every NaN
    int n;
    uint8_t* keep_bits;

    HOST_DEVICE void keep() const {
        if constexpr (M >= 4 && M <= 16 && has_mask_words)  // M = 32 would compile for another second
            if (n <= 2) return keep_few();
        if constexpr (M <= 4) {
            rank();
        } else {
            Vec sorted[M];
            UNROLL
            for (int i = 0; i < M; ++i) sorted[i] = key(i);
            deinterleave<Bits, M>(sorted);
            Vec threshold, next;
            if constexpr (M == 32) {  // the whole network would double the time of compilation
                sort_half(sorted);
                sort_half(sorted + M / 2);
                threshold = largest_of_halves(sorted, n);
                next = largest_of_halves(sorted, std::min(n + 1, M));
            } else {
                sort_descending<M>(sorted);  // the order of the channels does not matter
                threshold = sorted[n - 1];
                next = sorted[std::min(n, M - 1)];
            }
            // If no group has equal keys on both sides of the cut, the threshold decides.
            if (n < M && any_lane(threshold == next))
                break_ties(threshold);
            else
                keep_reaching(threshold, all);
        }
    }

  private:
    HOST_DEVICE Vec key(int vector) const {
        return magnitude_key(load<Bits>(from + vector * lanes<Bits>), Lane<Vec>::splat(std::numeric_limits<Bits>::max()),
                             Lane<Vec>::splat(not_a_number));
    }

    static __attribute__((noinline)) void sort_half(Vec* key) {
        sort_descending<M / 2>(*reinterpret_cast<Vec(*)[M / 2]>(key));
    }
    // Returns the count-th largest of two sorted halves: for some division of the count among them, it is the smaller one
    // of the last keys.
    static HOST_DEVICE Vec largest_of_halves(const Vec (&sorted)[M], int count) {
        Vec largest = Lane<Vec>::splat(-1);
        for (int first = std::max(0, count - M / 2); first <= std::min(count, M / 2); ++first) {
            const Vec one = first == 0 ? sorted[M / 2 + count - 1] : sorted[first - 1];
            const Vec other = first == count ? one : sorted[M / 2 + count - first - 1];
            const Vec smaller = one < other ? one : other;
            largest = largest < smaller ? smaller : largest;
        }
        return largest;
    }

    // Keeps the one or two largest of each group.
    HOST_DEVICE void keep_few() const {
        Vec largest[M][2];
        UNROLL
        for (int i = 0; i < M; ++i) largest[i][0] = key(i);
        find_largest<M, 1>(largest);
        const Vec threshold = largest[0][n - 1];
        const KeepWords reach = reaching<false>(threshold, all);
        int kept = 0;
        UNROLL
        for (int i = 0; i < M; ++i) kept += __builtin_popcount(reach.word[i]);
        // If some group has equal keys on both sides of the cut, too many reach the threshold.
        if (kept == n * lanes<Bits>)
            std::memcpy(keep_bits, reach.word, sizeof reach.word);
        else if (M <= 4)
            rank();
        else
            keep_lowest(reach, reaching<true>(threshold, all));
    }
    struct KeepWords {
        MaskWord<Bits> word[M];
    };
    // Keeps the larger ones of each group, and the lowest of those that reach the threshold.
    __attribute__((noinline)) void keep_lowest(const KeepWords& reach, const KeepWords& larger) const {
        constexpr int words = elements <= 64 ? 1 : elements / 64;
        uint64_t reached[words] = {}, keep[words] = {};
        std::memcpy(reached, reach.word, sizeof reach.word);
        std::memcpy(keep, larger.word, sizeof larger.word);
        for (int first = 0; first < elements; first += M) {
            const uint64_t group = (~uint64_t{0} >> (64 - M)) << first % 64, chosen = keep[first / 64] & group;
            const uint64_t lowest = reached[first / 64] & group & ~chosen, others = lowest & (lowest - 1);
            const int room = n - __builtin_popcountll(chosen);
            if (room == 1) keep[first / 64] |= lowest ^ others;
            if (room == 2) keep[first / 64] |= lowest ^ (others & (others - 1));
        }
        std::memcpy(keep_bits, keep, sizeof reach.word);
    }
    // The first Count entries have the Found largest keys of 1 / Count of the elements of each group, in descending order.
    template <int Count, int Found>
    static HOST_DEVICE void find_largest(Vec (&largest)[M][2]) {
        if constexpr (Count > 1) {
            UNROLL
            for (int i = 0; i < Count / 2; ++i) {
                Vec even[Found], odd[Found];
                UNROLL
                for (int k = 0; k < Found; ++k)
                    split_pairs<Count == M || (Count == 2 && group_is_vectors)>(largest[2 * i][k], largest[2 * i + 1][k],
                                                                               even[k], odd[k]);
                const Vec smaller = even[0] < odd[0] ? even[0] : odd[0];
                largest[i][0] = even[0] < odd[0] ? odd[0] : even[0];
                largest[i][1] = smaller;
                if constexpr (Found == 2) {
                    const Vec second = even[1] < odd[1] ? odd[1] : even[1];
                    largest[i][1] = second < smaller ? smaller : second;
                }
            }
            find_largest<Count / 2, 2>(largest);
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
    HOST_DEVICE KeepWords reaching(Vec threshold, std::index_sequence<Part...>) const {
        return {{reaching_part<Larger, Part>(threshold, std::make_index_sequence<lanes<Bits>>{})...}};
    }
    template <bool Larger, std::size_t Part, std::size_t... I>
    HOST_DEVICE MaskWord<Bits> reaching_part(Vec threshold, std::index_sequence<I...>) const {
        constexpr auto place = [](int element) {
            const int group = (static_cast<int>(Part) * lanes<Bits> + element) / M;
            if (sizeof(Bits) == 4) return group;
            // The last step of `find_largest` has put the second half of the groups into the upper halves of words.
            if (group_is_vectors) return 2 * (group % (lanes<Bits> / 2)) + group / (lanes<Bits> / 2);
            // The first step has put the groups of every second vector there.
            return 2 * (static_cast<int>(Part) / 2 * (lanes<Bits> / M) + element / M) + static_cast<int>(Part) % 2;
        };
        const Vec bar = __builtin_shufflevector(threshold, threshold, place(I)...);
        if (Larger) return static_cast<MaskWord<Bits>>(~at_least<Bits>(bar, key(Part)));
        return at_least<Bits>(key(Part), bar);
    }

    // Converts to one vector per channel (lane = group), in the order of channels.
    HOST_DEVICE void keys_by_channel(Vec (&by_channel)[M]) const {
        Vec deinterleaved[M];
        UNROLL
        for (int i = 0; i < M; ++i) deinterleaved[i] = key(i);
        deinterleave<Bits, M>(deinterleaved);
        UNROLL
        for (int c = 0; c < M; ++c) by_channel[c] = deinterleaved[reversed_bits(c, M)];
    }
    HOST_DEVICE void store_kept(const Vec (&keep)[M]) const {
        Vec mask[M];
        UNROLL
        for (int c = 0; c < M; ++c) mask[reversed_bits(c, M)] = keep[c];
        interleave<Bits, M>(mask);
        UNROLL
        for (int i = 0; i < M; ++i) store_bits<Bits>(keep_bits, i * lanes<Bits>, mask[i]);
    }

    HOST_DEVICE void rank() const {
        Vec by_channel[M], keep[M];
        keys_by_channel(by_channel);
        keep_largest<M>(by_channel, n, keep);
        store_kept(keep);
    }

    // Not inlined, to leave all registers to the path without ties.
    __attribute__((noinline)) void break_ties(Vec threshold) const {
        Vec by_channel[M], keep[M];
        keys_by_channel(by_channel);
        keep_by_threshold<M>(by_channel, threshold, n, keep);
        store_kept(keep);
    }

    template <std::size_t... Part>
    HOST_DEVICE void keep_reaching(Vec threshold, std::index_sequence<Part...>) const {
        constexpr auto width = std::make_index_sequence<lanes<Bits>>{};
        (store_bits<Bits>(keep_bits, Part * lanes<Bits>, key(Part) >= spread<M, Part>(threshold, width)), ...);
    }
};

// Each of the functions below writes complete tiles: up to `keep_bits_padding` bytes more than the elements have.
template <int M, class Bits>
__attribute__((noinline)) void keep_largest_of(const Bits* from, int64_t groups, Bits not_a_number, int n,
                                               uint8_t* keep_bits) {
    constexpr int tile = Tile<Bits, M>::elements;
    for (; groups >= lanes<Bits>; groups -= lanes<Bits>, from += tile, keep_bits += tile / 8)
        Tile<Bits, M>{from, not_a_number, n, keep_bits}.keep();
    if (groups > 0) {
        Bits rest[tile] = {};
        std::memcpy(rest, from, static_cast<std::size_t>(groups) * M * sizeof(Bits));
        Tile<Bits, M>{rest, not_a_number, n, keep_bits}.keep();
    }
}

template <class Format, class Bits>
void keep_largest_of_groups(const Problem& problem, const Bits* from, int64_t groups, uint8_t* keep_bits) {
    constexpr auto not_a_number = static_cast<Bits>(Format::infinity + 1);
    with_size(problem.padded, [&](auto m) { keep_largest_of<m>(from, groups, not_a_number, problem.n, keep_bits); });
}

// Groups first .. last - 1 are counted over (sample, pixel, group of the pixel); `from` is their first element.
template <class Format>
void keep_by_magnitude(const Problem& problem, int64_t first, int64_t last, const typename Format::Bits* from,
                       uint8_t* keep_bits) {
    if (problem.fast_groups) return keep_largest_of_groups<Format>(problem, from, last - first, keep_bits);
    const int64_t start = problem.offset(first), batch = batch_elements / problem.padded;
    for (int64_t end; first < last; first = end) {
        end = std::min(last, first + batch);
        const int64_t skipped = problem.offset(first) - start;
        typename Format::Bits padded[batch_elements] = {};
        uint8_t padded_bits[batch_elements / 8 + keep_bits_padding];
        for_neighbours(problem, first, end, [&](int64_t place, int64_t element, int64_t count) {
            std::copy_n(from + skipped + element, count, padded + place);
        });
        keep_largest_of_groups<Format>(problem, padded, end - first, padded_bits);
        for_neighbours(problem, first, end, [&](int64_t place, int64_t element, int64_t count) {
            append_bits(keep_bits, skipped + element, bits_from(padded_bits, place, static_cast<int>(count)));
        });
    }
}

// ---- random ----

// Draws the keep bits of a tile of whole groups. Each 16-bit lane has the bits of max(M, 8) consecutive elements, which is
// a whole number of Philox blocks and of groups.
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

template <int M>
__attribute__((noinline)) void keep_tiles_at_random(uint64_t block, int64_t elements, uint64_t seed, int n,
                                                    uint8_t* keep_bits) {
    using Drawn = RandomTile<M>;
    for (; elements > 0; elements -= Drawn::elements, keep_bits += Drawn::elements / 8, block += Drawn::elements / 8)
        Drawn::keep_bits(block, seed, n, keep_bits);
}

inline void keep_at_random(const Problem& problem, int64_t first, int64_t last, uint8_t* keep_bits) {
    const uint64_t number = static_cast<uint64_t>(first * problem.m);
    if (problem.fast_groups && number % 8 == 0) {  // the first group starts at a whole Philox block
        const int64_t elements = (last - first) * problem.m;
        return with_size(problem.m, [&](auto m) {
            keep_tiles_at_random<m>(number / 8, elements, problem.seed, problem.n, keep_bits);
        });
    }
    const int64_t start = problem.offset(first);
    uint64_t drawn = ~uint64_t{0};
    PhiloxBlock<uint64_t> block{};
    for (int64_t g = first; g < last; ++g) {
        const int64_t offset = problem.offset(g);
        const int size = static_cast<int>(problem.offset(g + 1) - offset);
        int32_t needed = std::min(problem.n, size);
        uint64_t kept = 0;
        for (int c = 0; c < size; ++c) {
            const uint64_t own = static_cast<uint64_t>(g * problem.m + c);
            if (own / 8 != drawn) {
                drawn = own / 8;
                block = philox4x32(drawn, problem.seed);
            }
            const int32_t half = static_cast<int32_t>((block.word[own % 8 / 2] >> (16 * (own % 2))) & 0xffffu);
            kept |= static_cast<uint64_t>(keep_at_random(half, size - c, needed) & 1) << c;
        }
        append_bits(keep_bits, offset - start, kept);
    }
}

}  // namespace pdt
