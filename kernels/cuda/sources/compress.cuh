// Pruning and compression in one pass, for sparse tensor cores: two values of every four channels, and their indices in 2
// bits each.
#pragma once

#include "unit.cuh"

namespace pdt {

// Returns the lowest index in a nonempty set of four indices (one bit each).
HOST_DEVICE uint32_t lowest_index(uint32_t set) { return set & 1u ? 0u : set & 2u ? 1u : set & 4u ? 2u : 3u; }

template <class U>
HOST_DEVICE uint32_t pick(const U& unit, int start, uint32_t index) {
    const uint32_t pair = index & 2u ? unit.word[start / 2 + 1] : unit.word[start / 2];
    return (pair >> (16 * (index & 1u))) & 0xffffu;
}

// A thread processes 16 channels and writes 8 values and 4 nibbles of metadata, with the first four channels in the lowest
// nibble. A nibble is index0 | index1 << 2 with index0 < index1. If fewer than two channels are kept, the lowest other
// channels fill up, with the value 0. For 16-bit formats; N is 1 or 2, and the number of elements is a multiple of 16.
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
    uint32_t packed[4], indices = 0;
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
            // Fill up to two channels from below, with a second round if nothing was kept.
            if ((kept & (kept - 1)) == 0) kept |= (kept + 1) & ~kept;
            if ((kept & (kept - 1)) == 0) kept |= (kept + 1) & ~kept;
            const uint32_t low = lowest_index(kept), high = lowest_index(kept & (kept - 1));
            packed[at] = pick(unit[u], 4 * four, low) | pick(unit[u], 4 * four, high) << 16;
            indices |= (low | high << 2) << (4 * at);
        }
    }
    store_once(values + index, {packed[0], packed[1], packed[2], packed[3]});
    metadata[index] = static_cast<uint16_t>(indices);
}

}  // namespace pdt
