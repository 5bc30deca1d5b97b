// Pruning and compressing in one pass, for sparse tensor cores: of every four channels the two values that are kept,
// and their places in 2 bits each.
#pragma once

#include "unit.cuh"

namespace pdt {

// Of a set of four places (one bit each, not empty).
HOST_DEVICE uint32_t place_of_lowest(uint32_t set) { return set & 1u ? 0u : set & 2u ? 1u : set & 4u ? 2u : 3u; }

template <class U>
HOST_DEVICE uint32_t pick(const U& unit, int start, uint32_t place) {
    const uint32_t pair = place & 2u ? unit.word[start / 2 + 1] : unit.word[start / 2];
    return (pair >> (16 * (place & 1u))) & 0xffffu;
}

// A thread takes 16 channels: 8 values and 4 nibbles of metadata, the lowest nibble for the first four channels. A
// nibble is place0 | place1 << 2 with place0 < place1. Where fewer than two are kept, the lowest other places fill up,
// with the value 0. 16-bit formats; N is 1 or 2; `elements` is a multiple of 16.
template <class Format, int M, int N, int MODE>
__global__ void __launch_bounds__(256)
    prune_and_compress(const uint4* grad, uint4* values, uint16_t* metadata, int64_t sixteens,
                       const uint64_t* seed_memory, uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    static_assert(U::size == 2 && N <= 2 && M <= 16, "at most two of each aligned four channels are kept");
    constexpr int units = 16 / U::elements;
    const int64_t index = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (index >= sixteens) return;
    const uint64_t key = read_seed(seed_memory, seed);
    uint32_t packed[4], places = 0;
    U unit[units];
    UNROLL
    for (int u = 0; u < units; ++u) unit[u].load(grad + (index * units + u) * U::quads);
    UNROLL
    for (int u = 0; u < units; ++u) {
        int32_t keep[U::elements];
        unit[u].template select<N>(index * 16 + u * U::elements, key, keep);
        unit[u].apply(keep);
        UNROLL
        for (int four = 0; four < U::elements / 4; ++four) {
            const int at = u * U::elements / 4 + four;
            uint32_t kept = 0;
            UNROLL
            for (int i = 0; i < 4; ++i) kept |= static_cast<uint32_t>(keep[4 * four + i]) & (1u << i);
            // Fill up from below to two places; a second round where nothing was kept.
            if ((kept & (kept - 1)) == 0) kept |= (kept + 1) & ~kept;
            if ((kept & (kept - 1)) == 0) kept |= (kept + 1) & ~kept;
            const uint32_t low = place_of_lowest(kept), high = place_of_lowest(kept & (kept - 1));
            packed[at] = pick(unit[u], 4 * four, low) | pick(unit[u], 4 * four, high) << 16;
            places |= (low | high << 2) << (4 * at);
        }
    }
    store_once(values + index, {packed[0], packed[1], packed[2], packed[3]});
    metadata[index] = static_cast<uint16_t>(places);
}

}  // namespace pdt
