// Rescaling within each group: processes one group per lane, so that the sum of a group is a sum of vectors.
#pragma once

#include <algorithm>
#include <cstdint>

#include "channel_sums.h"

namespace pdt {

// Multiplies each pruned group of M channels by sum |G| / sum |G^|. `to` may be `dense` or `pruned`; `elements` is
// a multiple of M.
template <class Format, int M>
void rescale_groups(const typename Format::Bits* dense, const typename Format::Bits* pruned, typename Format::Bits* to,
                    int64_t elements) {
    using Bits = typename Format::Bits;
    using Vec = Vector<Bits>;
    constexpr int parts = Wide<Format>::parts, tile = M * lanes<Bits>;
    const Vec without_sign = Lane<Vec>::splat(Format::without_sign);
    for (int64_t first = 0; first < elements; first += tile) {
        Vec before[M], after[M];
        UNROLL
        for (int i = 0; i < M; ++i) {
            const int64_t place = first + i * lanes<Bits>, left = std::max<int64_t>(0, elements - place);
            before[i] = load_first(dense + place, left) & without_sign;
            after[i] = load_first(pruned + place, left);
        }
        deinterleave<Bits, M>(before);
        deinterleave<Bits, M>(after);
        Vector<float> sum[parts] = {}, kept[parts] = {}, value[parts];
        UNROLL
        for (int c = 0; c < M; ++c) {
            Wide<Format>::decode(before[c], value);
            UNROLL
            for (int part = 0; part < parts; ++part) sum[part] += value[part];
            Wide<Format>::decode(after[c] & without_sign, value);
            UNROLL
            for (int part = 0; part < parts; ++part) kept[part] += value[part];
        }
        UNROLL
        for (int part = 0; part < parts; ++part) sum[part] = ratio_of(sum[part], kept[part]);
        UNROLL
        for (int c = 0; c < M; ++c) after[c] = rescaled<Format>(after[c], sum);
        interleave<Bits, M>(after);
        UNROLL
        for (int i = 0; i < M; ++i) {
            const int64_t place = first + i * lanes<Bits>;
            if (place < elements) store_first(to + place, after[i], elements - place);
        }
    }
}

}  // namespace pdt
