// Products of pairs of bf16 numbers, with AVX512_BF16. They are exact in fp32. The instruction takes subnormal operands and
// sums as zeros, and rounds to nearest even, whatever the process has set.
#pragma once

#if defined(__AVX512BF16__)

#include "lanes.h"

namespace pdt {

// Two bf16 factors, in every 32-bit lane.
HOST_DEVICE __m512i two_factors(uint32_t first, uint32_t second) {
    return _mm512_set1_epi32(static_cast<int>(first | second << 16));
}

// Adds the products of adjacent numbers of two vectors to the same lane.
HOST_DEVICE Vector<float> add_pairs(Vector<float> sum, __m512i a, __m512i b) {
    return (Vector<float>)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
}

// Adds one factor times a vector and another factor times another vector. `low` gets quarters 0, 2, 4, 6 of eight quarters of
// the result, and `high` the others: those of `alternate_halves` of the result, from the lowest.
HOST_DEVICE void add_two_products(__m512i factors, __m512i one, __m512i other, Vector<float>& low, Vector<float>& high) {
    low = add_pairs(low, factors, _mm512_unpacklo_epi16(one, other));
    high = add_pairs(high, factors, _mm512_unpackhi_epi16(one, other));
}

// Rounds sums to bf16: those of `low`, then those of `high`.
HOST_DEVICE __m512i rounded(Vector<float> low, Vector<float> high) {
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

// Returns four numbers of the first half and four of the second half of a vector in turn.
HOST_DEVICE __m512i alternate_halves(__m512i numbers) {
    return _mm512_permutexvar_epi64(_mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), numbers);
}

}  // namespace pdt

#endif
