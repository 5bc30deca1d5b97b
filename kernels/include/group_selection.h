// How n channels of a group of m are chosen: the one place where the rule is written.
//
// Plain C++17. `Key` may be a scalar or a vector of lanes (one group per lane), so that a CPU kernel that handles many
// groups at once and a CUDA kernel with one thread per group run the same text. Nothing here branches on values.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_DEVICE inline __attribute__((always_inline))
#endif

#if defined(__CUDACC__)
#define UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace pdt {

// The integer type of one lane, and a key that holds the same integer in every lane. Vector types specialise both.
template <class Key>
struct Lane {
    using Integer = Key;
    static HOST_DEVICE Key splat(int value) { return static_cast<Key>(value); }
};

// Magnitude of a float as an integer that sorts like |x|: the sign bit cleared, and every NaN just above infinity so
// that NaNs tie with each other whatever their payload.
template <class Key>
HOST_DEVICE Key magnitude_key(Key bits, Key without_sign, Key not_a_number) {
    const Key magnitude = bits & without_sign;
    return magnitude < not_a_number ? magnitude : not_a_number;
}

// keep[i] is all ones when fewer than n channels rank before channel i, else 0. A channel ranks before another when its
// key is larger, or equal with the lower index. Keys lie in -1 .. largest positive, so a difference cannot overflow and
// its sign bit is the comparison; a key of -1 marks a channel that does not exist (the end of a short group).
template <int M, class Key>
HOST_DEVICE void keep_largest(const Key (&key)[M], int n, Key (&keep)[M]) {
    constexpr int sign = 8 * sizeof(typename Lane<Key>::Integer) - 1;
    // ahead[j] counts channels before j, less j: each lower channel counts as ahead until j proves strictly larger.
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

struct PhiloxBlock {
    uint32_t word[4];
};

// Philox4x32-10 (Salmon et al., SC 2011) at counter (low, high, 0, 0) with the 64-bit seed as its key.
HOST_DEVICE PhiloxBlock philox4x32_10(uint64_t counter, uint64_t seed) {
    uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    UNROLL
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53u;
        const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(p1);
        c3 = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

// The stream of 16-bit random numbers: number j is half j % 8 of Philox block j / 8, low half of a word first.
// Channel i of group g uses number g * m + i.
HOST_DEVICE int32_t random_half(const PhiloxBlock& block, int index) {
    return static_cast<int32_t>((block.word[index >> 1] >> (16 * (index & 1))) & 0xffffu);
}

// One step of selection sampling (Knuth, TAOCP 2, 3.4.2, algorithm S): visit the channels in order and keep each with
// probability (still needed) / (still to visit). Every n-subset comes out equally likely, to within 2^-16 per step.
// Returns -1 (keep) or 0.
HOST_DEVICE int32_t keep_random(int32_t half, int32_t to_visit, int32_t needed) {
    return (half * to_visit - (needed << 16)) >> 31;
}

}  // namespace pdt
