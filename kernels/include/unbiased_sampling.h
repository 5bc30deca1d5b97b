// Unbiased pruning of a group of m channels: the same operations, in the same order, as kernels/prune/unbiased.py.
//
// Plain C++17. `Real` is fp32, or a vector of lanes (one group per lane). No product is added to another number. A
// compiler can therefore not contract operations, and all results are equal bit for bit.
#pragma once

#include "portable.h"

namespace pdt {

// A number in every lane, whether a condition holds in some lane, and the conversion of integers below 2^24. Vector types
// specialise this.
template <class Real>
struct RealLane {
    using Word = uint32_t;
    static HOST_DEVICE Real splat(float value) { return value; }
    static HOST_DEVICE bool anywhere(bool condition) { return condition; }
    static HOST_DEVICE Real convert(Word word) { return static_cast<float>(static_cast<int32_t>(word)); }
};

// Uniform number between 0 and 1, both excluded, from the upper 23 bits of a random word. Group g uses word g % 4 of the
// Philox block g / 4.
template <class Real>
HOST_DEVICE Real uniform_of(typename RealLane<Real>::Word word) {
    return RealLane<Real>::convert((word >> 9) * 2u + 1u) * RealLane<Real>::splat(0x1p-24f);
}

// Replaces the magnitudes of a group (0 for missing channels) by their values after sampling: 0 for a channel that is not
// kept. Returns the sum of the magnitudes. If it is not finite, the values have no meaning.
template <int M, class Real>
HOST_DEVICE Real sample_unbiased(Real (&value)[M], int n, Real uniform) {
    using L = RealLane<Real>;
    const Real zero = L::splat(0.0f), one = L::splat(1.0f), infinity = L::splat(float_of_bits(0x7f800000u));
    Real rest[M], needed = L::splat(static_cast<float>(n)), total = zero;
    UNROLL
    for (int i = 0; i < M; ++i) {
        rest[i] = value[i];
        total = total + rest[i];
    }
    const Real total_of_group = total;

    // Channels that are kept with certainty leave the sum, until all channels in it are uncertain.
    for (;;) {
        const Real bar = total > zero ? total : infinity;
        Real still_needed = needed;
        UNROLL
        for (int i = 0; i < M; ++i) {
            const auto certain = rest[i] * needed >= bar;
            still_needed = certain ? still_needed - one : still_needed;
            rest[i] = certain ? zero : rest[i];
        }
        if (!L::anywhere(still_needed != needed)) break;
        needed = still_needed;
        total = zero;
        UNROLL
        for (int i = 0; i < M; ++i) total = total + rest[i];
    }

    // Rounding may leave as many channels as are still to keep.
    Real left = zero;
    UNROLL
    for (int i = 0; i < M; ++i) left = rest[i] > zero ? left + one : left;
    const auto few = left <= needed;
    left = few ? zero : left;
    const Real step = (few ? zero : total) / (needed > one ? needed : one);
    Real position = uniform, reached = zero;
    UNROLL
    for (int i = 0; i < M; ++i) {
        const Real size = few ? zero : rest[i];
        const auto candidate = size > zero;
        reached = reached + size;
        // Rounding may move a point beyond the last interval; the last channels are then selected.
        const auto selected = ((reached > position * step) & (needed > zero)) | (left <= needed);
        const auto keep = selected & candidate;
        value[i] = candidate ? zero : value[i];
        value[i] = keep ? step : value[i];
        left = candidate ? left - one : left;
        needed = keep ? needed - one : needed;
        position = keep ? position + one : position;
    }
    return total_of_group;
}

}  // namespace pdt
