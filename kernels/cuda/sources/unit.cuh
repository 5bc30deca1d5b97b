// A unit: whole groups that one thread holds in registers, loaded and stored 16 bytes at a time.
#pragma once

#include "float_formats.h"
#include "group_selection.h"
#include "unbiased_sampling.h"

namespace pdt {

enum Mode { mode_magnitude = 0, mode_random = 1, mode_unbiased = 2 };

// Key of random masks: an argument of the launch, or device memory, which a replayed graph reads again.
HOST_DEVICE uint64_t read_seed(const uint64_t* memory, uint64_t number) { return memory ? *memory : number; }

// Uniform number of a group; `block` is Philox block group / 4. The word is selected by comparison, because an index known
// only at run time would put the block into local memory.
HOST_DEVICE float uniform_of_group(const PhiloxBlock<uint64_t>& block, uint64_t group) {
    const uint64_t low = group & 1 ? block.word[1] : block.word[0];
    const uint64_t high = group & 1 ? block.word[3] : block.word[2];
    return uniform_of<float>(static_cast<uint32_t>(group & 2 ? high : low));
}

// Samples a group of M channels, of which missing ones have the value 0. If the sum of its magnitudes is not finite, nothing
// is changed, and the result is false.
template <class Format, int M>
HOST_DEVICE bool sample_group(typename Format::Bits (&bits)[M], int n, float uniform) {
    using Bits = typename Format::Bits;
    float value[M];
    UNROLL
    for (int i = 0; i < M; ++i) value[i] = Format::decode(static_cast<Bits>(bits[i] & Format::without_sign));
    const float total = sample_unbiased<M>(value, n, uniform);
    if (!(total < float_of_bits(0x7f800000u))) return false;
    UNROLL
    for (int i = 0; i < M; ++i) {
        const Bits sampled = Format::encode(value[i]);
        bits[i] = static_cast<Bits>(sampled != 0 ? sampled | (bits[i] & ~Format::without_sign) : 0);
    }
    return true;
}

// A unit has at least 16 bytes, one group, and in random mode one Philox block.
template <class Format, int M, int MODE>
struct Unit {
    using Bits = typename Format::Bits;
    static constexpr int size = sizeof(Bits);
    static constexpr int least = MODE == mode_random ? 8 : 16 / size;
    static constexpr int elements = M > least ? M : least;
    static constexpr int quads = elements * size / 16;

    uint32_t word[4 * quads];

    // Loads and stores past the caches. `load_plain` and `store_plain` are for data that is needed again, and for shared
    // memory, which these two cannot address.
    HOST_DEVICE void load(const uint4* from) {
        UNROLL
        for (int q = 0; q < quads; ++q) put(q, load_once(from + q));
    }
    HOST_DEVICE void store(uint4* to) const {
        UNROLL
        for (int q = 0; q < quads; ++q) store_once(to + q, quad(q));
    }
    HOST_DEVICE void load_plain(const uint4* from) {
        UNROLL
        for (int q = 0; q < quads; ++q) put(q, from[q]);
    }
    HOST_DEVICE void store_plain(uint4* to) const {
        UNROLL
        for (int q = 0; q < quads; ++q) to[q] = quad(q);
    }

    // Loads the first `count` elements, followed by zeros.
    HOST_DEVICE void load_first(const Bits* from, int count) {
        UNROLL
        for (int w = 0; w < 4 * quads; ++w) word[w] = 0;
        UNROLL
        for (int i = 0; i < elements; ++i)
            if (i < count) set(i, from[i]);
    }
    HOST_DEVICE void store_first(Bits* to, int count) const {
        UNROLL
        for (int i = 0; i < elements; ++i)
            if (i < count) to[i] = get(i);
    }

    HOST_DEVICE Bits get(int i) const {
        if constexpr (size == 4) return static_cast<Bits>(word[i]);
        return static_cast<Bits>(word[i / 2] >> (16 * (i % 2)));
    }
    HOST_DEVICE void set(int i, Bits bits) {
        if constexpr (size == 4) {
            word[i] = static_cast<uint32_t>(bits);
        } else {
            const uint32_t half = static_cast<uint16_t>(bits);
            word[i / 2] = i % 2 ? (word[i / 2] & 0xffffu) | (half << 16) : (word[i / 2] & 0xffff0000u) | half;
        }
    }
    HOST_DEVICE float magnitude(int i) const {
        return Format::decode(static_cast<Bits>(get(i) & Format::without_sign));
    }

    // Sets keep[i] to all ones if element i is kept, otherwise to 0. `first` is the index of element 0 in the gradient.
    template <int N>
    HOST_DEVICE void select(int64_t first, uint64_t seed, int32_t (&keep)[elements]) const {
        static_assert(MODE != mode_unbiased, "values change, so that a mask is not enough");
        if constexpr (MODE == mode_random)
            select_at_random<N>(first, seed, keep);
        else
            select_by_magnitude<N>(keep);
    }

    HOST_DEVICE void apply(const int32_t (&keep)[elements]) {
        UNROLL
        for (int w = 0; w < 4 * quads; ++w) {
            if constexpr (size == 4)
                word[w] &= static_cast<uint32_t>(keep[w]);
            else
                word[w] &= (static_cast<uint32_t>(keep[2 * w]) & 0xffffu) |
                           (static_cast<uint32_t>(keep[2 * w + 1]) & 0xffff0000u);
        }
    }

    template <int N>
    HOST_DEVICE void prune(int64_t first, uint64_t seed) {
        if constexpr (MODE == mode_unbiased) {
            sample<N>(first, seed);
        } else {
            int32_t keep[elements];
            select<N>(first, seed, keep);
            apply(keep);
        }
    }

    // A pruned element stays exactly zero even if the ratio is not finite.
    HOST_DEVICE void multiply(int i, float ratio) {
        const Bits bits = get(i);
        if ((bits & Format::without_sign) != 0) set(i, Format::encode(Format::decode(bits) * ratio));
    }

  private:
    HOST_DEVICE void put(int q, uint4 quad) {
        word[4 * q] = quad.x;
        word[4 * q + 1] = quad.y;
        word[4 * q + 2] = quad.z;
        word[4 * q + 3] = quad.w;
    }
    HOST_DEVICE uint4 quad(int q) const { return {word[4 * q], word[4 * q + 1], word[4 * q + 2], word[4 * q + 3]}; }

    template <int N>
    HOST_DEVICE void select_by_magnitude(int32_t (&keep)[elements]) const {
        UNROLL
        for (int start = 0; start < elements; start += M) {
            int32_t kept[M];
            select_group<N>(start, kept);
            UNROLL
            for (int i = 0; i < M; ++i) keep[start + i] = kept[i];
        }
    }

    // Selects the N largest of the group that starts at an element of the unit.
    template <int N>
    HOST_DEVICE void select_group(int start, int32_t (&kept)[M]) const {
        int32_t key[M];
        UNROLL
        for (int i = 0; i < M; ++i)
            key[i] = magnitude_key<int32_t>(static_cast<int32_t>(get(start + i)), Format::without_sign,
                                            Format::infinity + 1);
        if constexpr (size == 2) {
            // A 16-bit magnitude leaves room for the index, so that all keys differ.
            int32_t sorted[M];
            UNROLL
            for (int i = 0; i < M; ++i) sorted[i] = key[i] = key[i] << 16 | (M - 1 - i);
            sort_descending<M>(sorted);
            UNROLL
            for (int i = 0; i < M; ++i) kept[i] = Lane<int32_t>::mask(key[i] >= sorted[N - 1]);
        } else {
            keep_largest<M>(key, N, kept);
        }
    }

    template <int N>
    HOST_DEVICE void sample(int64_t first, uint64_t seed) {
        static_assert(elements / M <= 4, "the groups of a unit share a Philox block");
        const uint64_t group = static_cast<uint64_t>(first) / M;
        const PhiloxBlock<uint64_t> block = philox4x32(group / 4, seed);
        UNROLL
        for (int start = 0; start < elements; start += M) {
            Bits bits[M];
            UNROLL
            for (int i = 0; i < M; ++i) bits[i] = get(start + i);
            if (!sample_group<Format, M>(bits, N, uniform_of_group(block, group + start / M))) {
                int32_t kept[M];
                select_group<N>(start, kept);
                UNROLL
                for (int i = 0; i < M; ++i) bits[i] = static_cast<Bits>(bits[i] & kept[i]);
            }
            UNROLL
            for (int i = 0; i < M; ++i) set(start + i, bits[i]);
        }
    }

    template <int N>
    HOST_DEVICE void select_at_random(int64_t first, uint64_t seed, int32_t (&keep)[elements]) const {
        int32_t needed = 0;
        UNROLL
        for (int start = 0; start < elements; start += 8) {
            const PhiloxBlock<uint64_t> block = philox4x32(static_cast<uint64_t>(first + start) / 8, seed);
            UNROLL
            for (int i = 0; i < 8; ++i) {
                if ((start + i) % M == 0) needed = N;
                const uint32_t word = static_cast<uint32_t>(block.word[i / 2]);
                const int32_t half = static_cast<int32_t>(i % 2 ? word >> 16 : word & 0xffffu);
                keep[start + i] = keep_at_random(half, M - (start + i) % M, needed);
            }
        }
    }
};

HOST_DEVICE float ratio_of(float dense, float kept) { return kept == 0.0f ? 0.0f : dense / kept; }

}  // namespace pdt
