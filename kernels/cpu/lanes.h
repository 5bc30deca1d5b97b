// Vectors of groups: many groups of a channels-last gradient are ranked at once, one group per lane.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

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
template <class Bits>
using Vector = typename VectorOf<Bits>::type;

template <class Bits>
constexpr int lanes = vector_bytes / static_cast<int>(sizeof(Bits));

template <>
struct Lane<Vector<int32_t>> {
    using Integer = int32_t;
    static HOST_DEVICE Vector<int32_t> splat(int value) { return Vector<int32_t>{} + static_cast<int32_t>(value); }
};
template <>
struct Lane<Vector<int16_t>> {
    using Integer = int16_t;
    static HOST_DEVICE Vector<int16_t> splat(int value) { return Vector<int16_t>{} + static_cast<int16_t>(value); }
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

// Index with its lowest log2(count) bits in reverse order: where `deinterleave` leaves a channel.
HOST_DEVICE constexpr int reversed_bits(int index, int count) {
    int reversed = 0;
    for (int bit = 1; bit < count; bit *= 2) {
        reversed = 2 * reversed + (index & 1);
        index /= 2;
    }
    return reversed;
}

// M vectors holding consecutive groups of M channels -> one vector per channel (lane = group), in bit-reversed order.
// Each stage parts even from odd positions: the lowest remaining bit of the channel becomes the highest of the index.
template <class Bits, int M>
HOST_DEVICE void deinterleave(Vector<Bits> (&value)[M]) {
    using Sequence = std::make_index_sequence<lanes<Bits>>;
    UNROLL
    for (int block = M; block > 1; block /= 2) {
        UNROLL
        for (int start = 0; start < M; start += block) {
            Vector<Bits> parted[M];
            UNROLL
            for (int i = 0; i < block / 2; ++i) {
                parted[i] = even_lanes(value[start + 2 * i], value[start + 2 * i + 1], Sequence{});
                parted[i + block / 2] = odd_lanes(value[start + 2 * i], value[start + 2 * i + 1], Sequence{});
            }
            UNROLL
            for (int i = 0; i < block; ++i) value[start + i] = parted[i];
        }
    }
}

// The inverse of `deinterleave`.
template <class Bits, int M>
HOST_DEVICE void interleave(Vector<Bits> (&value)[M]) {
    using Sequence = std::make_index_sequence<lanes<Bits>>;
    UNROLL
    for (int block = 2; block <= M; block *= 2) {
        UNROLL
        for (int start = 0; start < M; start += block) {
            Vector<Bits> merged[M];
            UNROLL
            for (int i = 0; i < block / 2; ++i) {
                merged[2 * i] = interleave_low(value[start + i], value[start + i + block / 2], Sequence{});
                merged[2 * i + 1] = interleave_high(value[start + i], value[start + i + block / 2], Sequence{});
            }
            UNROLL
            for (int i = 0; i < block; ++i) value[start + i] = merged[i];
        }
    }
}

// Prunes lanes<Bits> consecutive groups of M channels (M a power of two); `to` may be `from`.
template <class Bits, int M>
HOST_DEVICE void prune_tile(const Bits* from, Bits* to, int n, Vector<Bits> without_sign, Vector<Bits> not_a_number) {
    Vector<Bits> value[M], key[M], keep[M];
    UNROLL
    for (int i = 0; i < M; ++i) value[i] = load<Bits>(from + i * lanes<Bits>);
    deinterleave<Bits, M>(value);
    UNROLL
    for (int c = 0; c < M; ++c) key[c] = magnitude_key(value[reversed_bits(c, M)], without_sign, not_a_number);
    keep_largest<M>(key, n, keep);
    UNROLL
    for (int c = 0; c < M; ++c) value[reversed_bits(c, M)] &= keep[c];
    interleave<Bits, M>(value);
    UNROLL
    for (int i = 0; i < M; ++i) store<Bits>(to + i * lanes<Bits>, value[i]);
}

}  // namespace pdt
