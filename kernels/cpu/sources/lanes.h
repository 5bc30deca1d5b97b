// Vectors that process many groups of a channels-last gradient at once, one group per lane.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "group_selection.h"

namespace pdt {

#if defined(__AVX512BW__)
constexpr int vector_bytes = 64;
#elif defined(__AVX2__)
constexpr int vector_bytes = 32;
#else
constexpr int vector_bytes = 16;
#endif

template <class Bits>
struct VectorOf;
template <>
struct VectorOf<int32_t> {
    typedef int32_t type __attribute__((vector_size(vector_bytes)));
};
template <>
struct VectorOf<int16_t> {
    typedef int16_t type __attribute__((vector_size(vector_bytes)));
};
template <>
struct VectorOf<uint32_t> {
    typedef uint32_t type __attribute__((vector_size(vector_bytes)));
};
template <>
struct VectorOf<uint64_t> {
    typedef uint64_t type __attribute__((vector_size(vector_bytes)));
};
template <>
struct VectorOf<float> {
    typedef float type __attribute__((vector_size(vector_bytes)));
};
// One byte per 16-bit lane.
typedef uint8_t Bytes __attribute__((vector_size(vector_bytes / 2)));
template <class Bits>
using Vector = typename VectorOf<Bits>::type;

template <class Bits>
constexpr int lanes = vector_bytes / static_cast<int>(sizeof(Bits));

template <>
struct Lane<Vector<int32_t>> {
    using Integer = int32_t;
    static HOST_DEVICE Vector<int32_t> splat(int value) { return Vector<int32_t>{} + static_cast<int32_t>(value); }
    static HOST_DEVICE Vector<int32_t> mask(Vector<int32_t> condition) { return condition; }
};
template <>
struct Lane<Vector<int16_t>> {
    using Integer = int16_t;
    static HOST_DEVICE Vector<int16_t> splat(int value) { return Vector<int16_t>{} + static_cast<int16_t>(value); }
    static HOST_DEVICE Vector<int16_t> mask(Vector<int16_t> condition) { return condition; }
};

template <class Bits>
HOST_DEVICE Vector<Bits> load(const Bits* from) {
    Vector<Bits> value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

template <class Bits>
HOST_DEVICE void store(Bits* to, Vector<Bits> value) {
    std::memcpy(to, &value, sizeof value);
}

// Returns the value, and prevents the compiler from reading it from memory again.
template <class Vec>
HOST_DEVICE Vec in_register(Vec value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__x86_64__)
    asm("" : "+x"(value));
#endif
    return value;
}

// Loads the first `count` elements; zeros follow.
template <class Bits>
HOST_DEVICE Vector<Bits> load_first(const Bits* from, int64_t count) {
    if (count >= lanes<Bits>) return load<Bits>(from);
#if defined(__AVX512BW__)
    const uint64_t bytes = (uint64_t{1} << count * static_cast<int64_t>(sizeof(Bits))) - 1;
    return (Vector<Bits>)_mm512_maskz_loadu_epi8(bytes, from);
#else
    Vector<Bits> value{};
    std::memcpy(&value, from, static_cast<std::size_t>(count) * sizeof(Bits));
    return value;
#endif
}

template <class Bits>
HOST_DEVICE void store_first(Bits* to, Vector<Bits> value, int64_t count) {
    if (count >= lanes<Bits>) return store<Bits>(to, value);
#if defined(__AVX512BW__)
    const uint64_t bytes = (uint64_t{1} << count * static_cast<int64_t>(sizeof(Bits))) - 1;
    _mm512_mask_storeu_epi8(to, bytes, (__m512i)value);
#else
    std::memcpy(to, &value, static_cast<std::size_t>(count) * sizeof(Bits));
#endif
}

// Stores past the caches: the overwritten line is not read first, which saves a third of the traffic of a copy. `to` is
// aligned to a vector. Call `finish_streaming` before another thread reads the result.
template <class Bits>
HOST_DEVICE void stream(Bits* to, Vector<Bits> value) {
#if defined(__AVX512BW__)
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value);
#elif defined(__AVX2__)
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value);
#elif defined(__SSE2__)
    _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value);
#else
    store<Bits>(to, value);
#endif
}

inline void finish_streaming() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Writes bit `element` + i of `bits` for each lane i: whether `mask` has all ones in that lane. `element` is a multiple of
// the number of lanes; if a byte has two vectors, the first one is written first.
template <class Bits>
HOST_DEVICE void store_bits(uint8_t* bits, int64_t element, Vector<Bits> mask) {
    uint8_t* to = bits + element / 8;
#if defined(__AVX512BW__)
    if constexpr (sizeof(Bits) == 2) {
        const uint32_t word = _mm512_movepi16_mask((__m512i)mask);
        std::memcpy(to, &word, sizeof word);
    } else {
        const uint16_t word = static_cast<uint16_t>(_mm512_test_epi32_mask((__m512i)mask, (__m512i)mask));
        std::memcpy(to, &word, sizeof word);
    }
#elif defined(__AVX2__)
    if constexpr (sizeof(Bits) == 2) {
        const __m128i narrow = _mm_packs_epi16(_mm256_castsi256_si128((__m256i)mask),
                                               _mm256_extracti128_si256((__m256i)mask, 1));
        const uint16_t word = static_cast<uint16_t>(_mm_movemask_epi8(narrow));
        std::memcpy(to, &word, sizeof word);
    } else {
        *to = static_cast<uint8_t>(_mm256_movemask_ps((__m256)mask));
    }
#else
    uint32_t word = 0;
    for (int i = 0; i < lanes<Bits>; ++i) word |= static_cast<uint32_t>(mask[i] & 1) << i;
    if constexpr (lanes<Bits> == 8)
        *to = static_cast<uint8_t>(word);
    else
        *to = static_cast<uint8_t>(element % 8 == 0 ? word : *to | word << 4);
#endif
}

// Integer with one bit per lane.
#if defined(__AVX512BW__)
constexpr bool has_mask_words = true;
template <class Bits>
using MaskWord = std::conditional_t<sizeof(Bits) == 2, uint32_t, uint16_t>;
#elif defined(__AVX2__)
constexpr bool has_mask_words = true;
template <class Bits>
using MaskWord = std::conditional_t<sizeof(Bits) == 2, uint16_t, uint8_t>;
#else
constexpr bool has_mask_words = false;
template <class Bits>
using MaskWord = uint8_t;
#endif

// Returns in which lanes a >= b.
template <class Bits>
HOST_DEVICE MaskWord<Bits> at_least(Vector<Bits> a, Vector<Bits> b) {
#if defined(__AVX512BW__)
    if constexpr (sizeof(Bits) == 2)
        return _mm512_cmpge_epi16_mask((__m512i)a, (__m512i)b);
    else
        return _mm512_cmpge_epi32_mask((__m512i)a, (__m512i)b);
#else
    uint8_t bits[4] = {};
    store_bits<Bits>(bits, 0, a >= b);
    MaskWord<Bits> word;
    std::memcpy(&word, bits, sizeof word);
    return word;
#endif
}

// Returns whether a comparison holds in some lane.
template <class Vec>
HOST_DEVICE bool any_lane(Vec condition) {
#if defined(__AVX512BW__)
    return _mm512_test_epi64_mask((__m512i)condition, (__m512i)condition) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)condition, (__m256i)condition);
#else
    uint64_t words[vector_bytes / 8], any = 0;
    std::memcpy(words, &condition, sizeof words);
    for (uint64_t word : words) any |= word;
    return any != 0;
#endif
}

template <>
struct LowProduct<Vector<uint64_t>> {
    static HOST_DEVICE Vector<uint64_t> of(Vector<uint64_t> value, uint32_t factor) {
#if defined(__AVX512BW__)
        return (Vector<uint64_t>)_mm512_mul_epu32((__m512i)value, _mm512_set1_epi64(factor));
#elif defined(__AVX2__)
        return (Vector<uint64_t>)_mm256_mul_epu32((__m256i)value, _mm256_set1_epi64x(factor));
#else
        return (value & 0xffffffffu) * static_cast<uint64_t>(factor);
#endif
    }
};

template <class Vec, std::size_t... I>
HOST_DEVICE Vec even_lanes(Vec a, Vec b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (2 * I)...);
}
template <class Vec, std::size_t... I>
HOST_DEVICE Vec odd_lanes(Vec a, Vec b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (2 * I + 1)...);
}
template <class Vec, std::size_t... I>
HOST_DEVICE Vec interleave_low(Vec a, Vec b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (I / 2 + (I % 2) * sizeof...(I))...);
}
template <class Vec, std::size_t... I>
HOST_DEVICE Vec interleave_high(Vec a, Vec b, std::index_sequence<I...>) {
    return __builtin_shufflevector(a, b, (I / 2 + sizeof...(I) / 2 + (I % 2) * sizeof...(I))...);
}

// Returns the index with its lowest log2(count) bits reversed: the position of a channel after `deinterleave`.
HOST_DEVICE constexpr int reversed_bits(int index, int count) {
    int reversed = 0;
    for (int bit = 1; bit < count; bit *= 2) {
        reversed = 2 * reversed + (index & 1);
        index /= 2;
    }
    return reversed;
}

// Converts M vectors with consecutive groups of M channels to one vector per channel (lane = group), in bit-reversed order.
// Each stage separates even from odd positions: the lowest remaining bit of the channel becomes the highest of the index.
// The recursion makes every index a constant, so that all vectors stay in registers.
template <class Bits, int First, int Count, int M>
HOST_DEVICE void deinterleave_part(Vector<Bits> (&value)[M]) {
    if constexpr (Count > 1) {
        using Sequence = std::make_index_sequence<lanes<Bits>>;
        Vector<Bits> split[Count];
        UNROLL
        for (int i = 0; i < Count / 2; ++i) {
            split[i] = even_lanes(value[First + 2 * i], value[First + 2 * i + 1], Sequence{});
            split[i + Count / 2] = odd_lanes(value[First + 2 * i], value[First + 2 * i + 1], Sequence{});
        }
        UNROLL
        for (int i = 0; i < Count; ++i) value[First + i] = split[i];
        deinterleave_part<Bits, First, Count / 2>(value);
        deinterleave_part<Bits, First + Count / 2, Count / 2>(value);
    }
}

template <class Bits, int M>
HOST_DEVICE void deinterleave(Vector<Bits> (&value)[M]) {
    deinterleave_part<Bits, 0, M>(value);
}

// Inverse of `deinterleave`.
template <class Bits, int First, int Count, int M>
HOST_DEVICE void interleave_part(Vector<Bits> (&value)[M]) {
    if constexpr (Count > 1) {
        interleave_part<Bits, First, Count / 2>(value);
        interleave_part<Bits, First + Count / 2, Count / 2>(value);
        using Sequence = std::make_index_sequence<lanes<Bits>>;
        Vector<Bits> merged[Count];
        UNROLL
        for (int i = 0; i < Count / 2; ++i) {
            merged[2 * i] = interleave_low(value[First + i], value[First + i + Count / 2], Sequence{});
            merged[2 * i + 1] = interleave_high(value[First + i], value[First + i + Count / 2], Sequence{});
        }
        UNROLL
        for (int i = 0; i < Count; ++i) value[First + i] = merged[i];
    }
}

template <class Bits, int M>
HOST_DEVICE void interleave(Vector<Bits> (&value)[M]) {
    interleave_part<Bits, 0, M>(value);
}

// Copies one value per group to all elements of the group; returns vector `Part` of the tile.
template <int M, std::size_t Part, class Vec, std::size_t... I>
HOST_DEVICE Vec spread(Vec per_group, std::index_sequence<I...>) {
    return __builtin_shufflevector(per_group, per_group, ((Part * sizeof...(I) + I) / M)...);
}

// ---- random numbers, one Philox block per 16-bit lane ----

template <>
struct Draw<Vector<int16_t>> {
    static HOST_DEVICE Vector<int16_t> below(Vector<int16_t> half, int to_visit, Vector<int16_t> needed) {
#if defined(__AVX512BW__)
        const auto share = (Vector<int16_t>)_mm512_mulhi_epu16((__m512i)half, _mm512_set1_epi16(to_visit));
#elif defined(__AVX2__)
        const auto share = (Vector<int16_t>)_mm256_mulhi_epu16((__m256i)half, _mm256_set1_epi16(to_visit));
#elif defined(__SSE2__)
        const auto share = (Vector<int16_t>)_mm_mulhi_epu16((__m128i)half, _mm_set1_epi16(to_visit));
#else
        Vector<int16_t> share;
        for (int i = 0; i < lanes<int16_t>; ++i)
            share[i] = static_cast<int16_t>(static_cast<uint32_t>(static_cast<uint16_t>(half[i])) * to_visit >> 16);
#endif
        return share < needed;
    }
};

// Computes the eight numbers of the Philox blocks first, first + step, first + 2 step, ..., one block per lane. Four chains
// of products are interleaved, because one chain alone would wait for each multiplication.
HOST_DEVICE void philox_halves(uint64_t first, uint64_t step, uint64_t seed, Vector<int16_t> (&half)[8]) {
    using Word = Vector<uint64_t>;
    using Words = Vector<uint32_t>;
    Word counter;
    UNROLL
    for (int i = 0; i < lanes<uint64_t>; ++i) counter[i] = 4 * static_cast<uint64_t>(i);
    counter = counter * step + first;
    const PhiloxBlock<Word> block[4] = {
        philox4x32(counter, seed), philox4x32(counter + step, seed),
        philox4x32(counter + 2 * step, seed), philox4x32(counter + 3 * step, seed)};
    UNROLL
    for (int w = 0; w < 4; ++w) {
        // Blocks 0 to 3 of a 64-bit lane become its four 16-bit lanes, so that every number stays in its 64-bit lane.
        const Words even = (Words)((block[0].word[w] & 0xffffffffu) | (block[2].word[w] << 32));
        const Words odd = (Words)((block[1].word[w] & 0xffffffffu) | (block[3].word[w] << 32));
        half[2 * w] = (Vector<int16_t>)((even & 0xffffu) | (odd << 16));
        half[2 * w + 1] = (Vector<int16_t>)((even >> 16) | (odd & 0xffff0000u));
    }
}

// Computes the words of the Philox blocks first, first + 1, ..., in order: two vectors have as many words as lanes<uint64_t>
// blocks.
HOST_DEVICE void philox_words(uint64_t first, uint64_t seed, Vector<uint32_t> (&words)[2]) {
    using Word = Vector<uint64_t>;
    using Sequence = std::make_index_sequence<lanes<uint64_t>>;
    Word counter;
    UNROLL
    for (int i = 0; i < lanes<uint64_t>; ++i) counter[i] = first + static_cast<uint64_t>(i);
    const PhiloxBlock<Word> block = philox4x32(counter, seed);
    const Word low = (block.word[0] & 0xffffffffu) | (block.word[1] << 32);
    const Word high = (block.word[2] & 0xffffffffu) | (block.word[3] << 32);
    words[0] = (Vector<uint32_t>)interleave_low(low, high, Sequence{});
    words[1] = (Vector<uint32_t>)interleave_high(low, high, Sequence{});
}

// Returns the value in lanes whose bit is set, otherwise 0. Bit first + e of `bits` belongs to lane e; `first` is a
// multiple of the number of lanes.
template <class Bits>
HOST_DEVICE Vector<Bits> keep_where(const uint8_t* bits, int64_t first, Vector<Bits> value) {
#if defined(__AVX512BW__)
    if constexpr (sizeof(Bits) == 2) {
        uint32_t mask;
        std::memcpy(&mask, bits + first / 8, sizeof mask);
        return (Vector<Bits>)_mm512_maskz_mov_epi16(mask, (__m512i)value);
    } else {
        uint16_t mask;
        std::memcpy(&mask, bits + first / 8, sizeof mask);
        return (Vector<Bits>)_mm512_maskz_mov_epi32(mask, (__m512i)value);
    }
#else
    Vector<Bits> mask;
    for (int e = 0; e < lanes<Bits>; ++e)
        mask[e] = static_cast<Bits>(-((bits[(first + e) / 8] >> ((first + e) % 8)) & 1));
    return value & mask;
#endif
}

}  // namespace pdt
