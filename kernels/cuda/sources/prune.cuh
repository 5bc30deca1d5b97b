// Pruning without rescaling, and rescaling within each group: one read and one write of the gradient.
#pragma once

#include "unit.cuh"

namespace pdt {

template <class Format, int M, int MODE>
HOST_DEVICE float sum_of_group(const Unit<Format, M, MODE>& unit, int group) {
    float total = 0.0f;
    UNROLL
    for (int i = 0; i < M; ++i) total += unit.magnitude(group * M + i);
    return total;
}

template <int N, bool RESCALE, class Format, int M, int MODE>
HOST_DEVICE void prune_unit(Unit<Format, M, MODE>& unit, int64_t first, uint64_t key) {
    using U = Unit<Format, M, MODE>;
    if constexpr (RESCALE) {
        float dense[U::elements / M];
        UNROLL
        for (int g = 0; g < U::elements / M; ++g) dense[g] = sum_of_group(unit, g);
        unit.template prune<N>(first, key);
        UNROLL
        for (int g = 0; g < U::elements / M; ++g) {
            const float ratio = ratio_of(dense[g], sum_of_group(unit, g));
            UNROLL
            for (int i = 0; i < M; ++i) unit.multiply(g * M + i, ratio);
        }
    } else {
        unit.template prune<N>(first, key);
    }
}

// Prunes a flat run of whole groups. Each thread loads at least 64 bytes before it computes, to have enough reads in
// flight. `pruned` may be `grad`. Both are aligned to 16 bytes; `elements` is a multiple of M.
template <class Format, int M, int N, int MODE, bool RESCALE>
__global__ void __launch_bounds__(256) prune_units(const uint4* grad, uint4* pruned, int64_t elements,
                                                   const uint64_t* seed_memory, uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    using Bits = typename Format::Bits;
    constexpr int in_flight = U::quads >= 4 ? 1 : 4 / U::quads;
    const int64_t whole = elements / U::elements, first = int64_t{blockIdx.x} * (256 * in_flight) + threadIdx.x;
    const uint64_t key = read_seed(seed_memory, seed);
    U unit[in_flight];
    UNROLL
    for (int i = 0; i < in_flight; ++i) {
        const int64_t index = first + 256 * i;
        if (index < whole) unit[i].load(grad + index * U::quads);
    }
    UNROLL
    for (int i = 0; i < in_flight; ++i) {
        const int64_t index = first + 256 * i;
        if (index < whole) {
            prune_unit<N, RESCALE>(unit[i], index * U::elements, key);
            unit[i].store(pruned + index * U::quads);
        }
    }
    // The remaining elements are whole groups, but fewer than a unit.
    const int left = static_cast<int>(elements - whole * U::elements);
    if (left > 0 && blockIdx.x == 0 && threadIdx.x == 0) {
        U rest;
        rest.load_first(reinterpret_cast<const Bits*>(grad) + whole * U::elements, left);
        prune_unit<N, RESCALE>(rest, whole * U::elements, key);
        rest.store_first(reinterpret_cast<Bits*>(pruned) + whole * U::elements, left);
    }
}

}  // namespace pdt
