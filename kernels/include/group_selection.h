// Selection of n channels from a group of m: the only implementation of the rule.
//
// Plain C++17. `Key` may be a scalar or a vector of lanes (one group per lane), so that the same code serves a CPU kernel
// that processes many groups at once and a CUDA kernel with one group per thread. Nothing here branches on values.
#pragma once

#include "portable.h"

namespace pdt {

// Integer type of one lane, a key with the same integer in every lane, and the result of a comparison as all ones or 0.
// Vector types specialise this, since their comparisons are masks already.
template <class Key>
struct Lane {
    using Integer = Key;
    static HOST_DEVICE Key splat(int value) { return static_cast<Key>(value); }
    static HOST_DEVICE Key mask(bool condition) { return static_cast<Key>(-static_cast<int>(condition)); }
};

// Product of the low 32 bits of 64-bit lanes with a constant. Vector types specialise this, too.
template <class Word>
struct LowProduct {
    static HOST_DEVICE Word of(Word value, uint32_t factor) {
        return static_cast<Word>(static_cast<uint32_t>(value)) * factor;
    }
};

// ---- magnitude ----

// Magnitude of a float as an integer that sorts like |x|: the sign bit is cleared, and every NaN is just above infinity,
// so that NaNs are equal whatever their payload.
template <class Key>
HOST_DEVICE Key magnitude_key(Key bits, Key without_sign, Key not_a_number) {
    const Key magnitude = bits & without_sign;
    return magnitude < not_a_number ? magnitude : not_a_number;
}

// Exchanges two keys in the sorting network below, so that the larger one comes first.
template <class Key>
HOST_DEVICE void exchange(Key& first, Key& second) {
    const Key larger = first < second ? second : first;
    second = first < second ? first : second;
    first = larger;
}

// Batcher's odd-even merge sort (Knuth, TAOCP vol. 3, 5.3.4) as a network of exchanges. It consists of templates, so that
// every index is a constant: keys stay in registers, and exchanges with unused results are eliminated.
template <int First, int Count, int Step>
struct OddEvenMerge {
    template <class Key>
    static HOST_DEVICE void run(Key* key) {
        if constexpr (2 * Step < Count) {
            OddEvenMerge<First, Count, 2 * Step>::run(key);
            OddEvenMerge<First + Step, Count, 2 * Step>::run(key);
            exchange_inner<First + Step>(key);
        } else {
            exchange(key[First], key[First + Step]);
        }
    }

    // The merged halves of even and odd positions require a comparison of their inner neighbours.
    template <int Place, class Key>
    static HOST_DEVICE void exchange_inner(Key* key) {
        if constexpr (Place + Step < First + Count) {
            exchange(key[Place], key[Place + Step]);
            exchange_inner<Place + 2 * Step>(key);
        }
    }
};

template <int First, int Count>
struct OddEvenSort {
    template <class Key>
    static HOST_DEVICE void run(Key* key) {
        if constexpr (Count > 1) {
            OddEvenSort<First, Count / 2>::run(key);
            OddEvenSort<First + Count / 2, Count / 2>::run(key);
            OddEvenMerge<First, Count, 1>::run(key);
        }
    }
};

template <int M, class Key>
HOST_DEVICE void sort_descending(Key (&key)[M]) {
    static_assert((M & (M - 1)) == 0, "the network is for powers of two");
    OddEvenSort<0, M>::run(key);
}

// Sets keep[i] to all ones if fewer than n channels rank before channel i, otherwise to 0. A channel ranks before another
// one if its key is larger, or if the keys are equal and its index is lower. Keys are at least -1, so that a difference
// cannot overflow and its sign bit is the comparison. The key -1 marks a missing channel of a short group.
//
// Counts for small groups, with M (M - 1) / 2 comparisons.
template <int M, class Key>
HOST_DEVICE void keep_by_counting(const Key (&key)[M], int n, Key (&keep)[M]) {
    constexpr int sign = 8 * sizeof(typename Lane<Key>::Integer) - 1;
    // ahead[j] is the number of channels before j, minus j: lower channels count as ahead unless j is strictly larger.
    Key ahead[M];
    UNROLL
    for (int i = 0; i < M; ++i) ahead[i] = Lane<Key>::splat(0);
    UNROLL
    for (int i = 0; i < M; ++i) {
        UNROLL
        for (int j = i + 1; j < M; ++j) {
            const Key larger = (key[i] - key[j]) >> sign;
            ahead[i] -= larger;
            ahead[j] += larger;
        }
    }
    UNROLL
    for (int i = 0; i < M; ++i) keep[i] = (ahead[i] - Lane<Key>::splat(n - i)) >> sign;
}

// The same from the n-th largest key: keeps larger keys, and fills the remaining room with the lowest indices of equal
// keys.
template <int M, class Key>
HOST_DEVICE void keep_by_threshold(const Key (&key)[M], Key threshold, int n, Key (&keep)[M]) {
    const Key none = Lane<Key>::splat(0);
    Key room = Lane<Key>::splat(n);
    UNROLL
    for (int i = 0; i < M; ++i) room += Lane<Key>::mask(key[i] > threshold);
    UNROLL
    for (int i = 0; i < M; ++i) {
        const Key equal = Lane<Key>::mask(key[i] == threshold);
        keep[i] = Lane<Key>::mask(key[i] > threshold) | (equal & Lane<Key>::mask(room > none));
        room += equal;
    }
}

template <int M, class Key>
HOST_DEVICE void keep_largest(const Key (&key)[M], int n, Key (&keep)[M]) {
    if constexpr (M <= 4) {
        keep_by_counting<M>(key, n, keep);
    } else {
        Key sorted[M];
        UNROLL
        for (int i = 0; i < M; ++i) sorted[i] = key[i];
        sort_descending<M>(sorted);
        keep_by_threshold<M>(key, sorted[n - 1], n, keep);
    }
}

// ---- random ----

// Four 32-bit words in the low halves of `Word`s; the high halves contain parts of products.
template <class Word>
struct PhiloxBlock {
    Word word[4];
};

// Philox4x32-7 (Salmon et al., SC 2011; seven rounds are the fewest that pass BigCrush) at counter (low, high, 0, 0)
// with the 64-bit seed as its key. `Word` is a 64-bit integer, or a vector of them with one block per lane.
template <class Word>
HOST_DEVICE PhiloxBlock<Word> philox4x32(Word counter, uint64_t seed) {
    Word c0 = counter, c1 = counter >> 32, c2 = counter ^ counter, c3 = c2;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    UNROLL
    for (int round = 0; round < 7; ++round) {
        const Word p0 = LowProduct<Word>::of(c0, 0xD2511F53u), p1 = LowProduct<Word>::of(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ static_cast<uint64_t>(k0);
        c2 = (p0 >> 32) ^ c3 ^ static_cast<uint64_t>(k1);
        c1 = p1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// Returns all ones if half / 2^16 * to_visit < needed, otherwise 0. Vector types of 16 bits specialise this.
template <class Key>
struct Draw {
    static_assert(sizeof(typename Lane<Key>::Integer) == 4, "16-bit numbers times 32 channels");
    static HOST_DEVICE Key below(Key half, int to_visit, Key needed) {
        return (half * Lane<Key>::splat(to_visit) - (needed << 16)) >> 31;
    }
};

// The stream of 16-bit random numbers: number j is half j % 8 of Philox block j / 8, with the low half of a word first.
// Channel i of group g uses number g * m + i.
//
// Selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): visits the channels in order and keeps each with probability
// (still needed) / (still to visit). Every n-subset has the same probability, to within 2^-16 per step. `half` is the
// random number of the channel; `needed` is decremented in each lane that keeps. Returns all ones (keep) or 0.
template <class Key>
HOST_DEVICE Key keep_at_random(Key half, int to_visit, Key& needed) {
    const Key keep = Draw<Key>::below(half, to_visit, needed);
    needed += keep;
    return keep;
}

}  // namespace pdt
