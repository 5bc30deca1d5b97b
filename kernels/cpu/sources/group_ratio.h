// Ratios of groups: one group per lane, so that the sum of a group is a sum of vectors.
#pragma once

#include <cstdint>

#include "channel_sums.h"

namespace pdt {

// Replaces the magnitudes of pruned groups of M channels by sum |G| / sum |G^| of their group, in complete tiles of
// lanes<float> groups.
template <int M>
__attribute__((noinline)) void group_ratios_of(const float* dense, float* pruned, int64_t elements) {
    constexpr int tile = M * lanes<float>;
    for (; elements > 0; elements -= tile, dense += tile, pruned += tile) {
        Vector<float> before[M], after[M], sum{}, kept{};
        UNROLL
        for (int i = 0; i < M; ++i) {
            before[i] = load<float>(dense + i * lanes<float>);
            after[i] = load<float>(pruned + i * lanes<float>);
        }
        deinterleave<float, M>(before);
        deinterleave<float, M>(after);
        UNROLL
        for (int c = 0; c < M; ++c) {
            sum += before[c];
            kept += after[c];
        }
        UNROLL
        for (int c = 0; c < M; ++c) after[c] = ratio_of(sum, kept);
        interleave<float, M>(after);
        UNROLL
        for (int i = 0; i < M; ++i) store<float>(pruned + i * lanes<float>, after[i]);
    }
}

}  // namespace pdt
