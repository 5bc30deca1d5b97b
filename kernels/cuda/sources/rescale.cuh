// Pruning with a ratio per (sample, channel), per channel of the batch, or per row of a matrix.
//
// Sums are added in an order that depends on the shape only, never by atomics, so that results are reproducible.
#pragma once

#include "unit.cuh"

namespace pdt {

// Minimum number of blocks per multiprocessor: two leave 128 registers to a thread, one leaves 255. By default, the
// compiler aims at four and spills.
#define MIN_BLOCKS(M) ((M) > 16 ? 1 : 2)

// Sums of magnitudes of one column of units, before and after pruning, in a thread's registers.
template <class U>
struct ColumnSums {
    float dense[U::elements], kept[U::elements];

    HOST_DEVICE void clear() {
        UNROLL
        for (int i = 0; i < U::elements; ++i) dense[i] = kept[i] = 0.0f;
    }
    template <int N>
    HOST_DEVICE void add_and_prune(U& unit, int64_t first, uint64_t key) {
        UNROLL
        for (int i = 0; i < U::elements; ++i) dense[i] += unit.magnitude(i);
        unit.template prune<N>(first, key);
        UNROLL
        for (int i = 0; i < U::elements; ++i) kept[i] += unit.magnitude(i);
    }

    // Adds the sums of all rows of the block (threadIdx.y), a few elements at a time, and passes the two totals of each
    // channel to `finish(column, element, dense, kept)`. `memory` has `memory_floats` floats per thread of the block.
    static constexpr int piece = U::elements < 8 ? U::elements : 8, memory_floats = 2 * piece;
    template <class Finish>
    HOST_DEVICE void reduce(float* memory, Finish finish) const {
        const int columns = blockDim.x, rows = blockDim.y, threads = columns * rows;
        const int self = threadIdx.y * columns + threadIdx.x;
        UNROLL
        for (int start = 0; start < U::elements; start += piece) {
            UNROLL
            for (int i = 0; i < piece; ++i) {
                memory[i * threads + self] = dense[start + i];
                memory[(piece + i) * threads + self] = kept[start + i];
            }
            __syncthreads();
            for (int output = self; output < piece * columns; output += threads) {
                const int element = output / columns, column = output % columns;
                float before = 0.0f, after = 0.0f;
                for (int row = 0; row < rows; ++row) {
                    before += memory[element * threads + row * columns + column];
                    after += memory[(piece + element) * threads + row * columns + column];
                }
                finish(column, start + element, before, after);
            }
            __syncthreads();
        }
    }
};

// A block prunes one slab of channels (blockDim.x units wide) of one sample, blockDim.y pixels at a time. With STASH, the
// pruned slab stays in shared memory until its ratio is known: one read and one write of the gradient. Otherwise the slab
// is read and pruned a second time.
template <class Format, int M, int N, int MODE, bool STASH>
__global__ void __launch_bounds__(256, MIN_BLOCKS(M))
    prune_and_rescale_samples(const uint4* grad, uint4* pruned, int pixels, int units_per_pixel, int slabs,
                              const uint64_t* seed_memory, uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    DYNAMIC_SHARED(memory);
    float* partial = reinterpret_cast<float*>(memory);
    const int columns = blockDim.x, rows = blockDim.y;
    float* ratio = partial + ColumnSums<U>::memory_floats * columns * rows;
    uint4* stash = reinterpret_cast<uint4*>(ratio + U::elements * columns);
    const int column = static_cast<int>(blockIdx.x % slabs) * columns + threadIdx.x;
    const int64_t sample = blockIdx.x / slabs;
    const bool inside = column < units_per_pixel;
    const uint64_t key = read_seed(seed_memory, seed);

    ColumnSums<U> sums;
    sums.clear();
    if (inside)
        for (int pixel = threadIdx.y; pixel < pixels; pixel += rows) {
            const int64_t index = (sample * pixels + pixel) * units_per_pixel + column;
            U unit;
            if constexpr (STASH)
                unit.load(grad + index * U::quads);
            else
                unit.load_plain(grad + index * U::quads);  // it is read again below
            sums.template add_and_prune<N>(unit, index * U::elements, key);
            if constexpr (STASH) unit.store_plain(stash + (pixel * columns + threadIdx.x) * U::quads);
        }
    sums.reduce(partial, [&](int c, int element, float before, float after) {
        ratio[c * U::elements + element] = ratio_of(before, after);
    });
    if (inside)
        for (int pixel = threadIdx.y; pixel < pixels; pixel += rows) {
            const int64_t index = (sample * pixels + pixel) * units_per_pixel + column;
            U unit;
            if constexpr (STASH) {
                unit.load_plain(stash + (pixel * columns + threadIdx.x) * U::quads);
            } else {
                unit.load(grad + index * U::quads);
                unit.template prune<N>(index * U::elements, key);
            }
            UNROLL
            for (int i = 0; i < U::elements; ++i) unit.multiply(i, ratio[threadIdx.x * U::elements + i]);
            unit.store(pruned + index * U::quads);
        }
}

// Computes sums[part][dense, kept][channel] over one part of the pixels of the batch.
template <class Format, int M, int N, int MODE>
__global__ void __launch_bounds__(256, MIN_BLOCKS(M)) sum_channels(const uint4* grad, float* sums, int64_t pixels,
                                                    int64_t pixels_per_part, int units_per_pixel, int slabs,
                                                    const uint64_t* seed_memory, uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    DYNAMIC_SHARED(memory);
    const int first_column = static_cast<int>(blockIdx.x % slabs) * blockDim.x, column = first_column + threadIdx.x;
    const int64_t part = blockIdx.x / slabs, begin = part * pixels_per_part;
    const int64_t end = begin + pixels_per_part < pixels ? begin + pixels_per_part : pixels;
    const int64_t channels = int64_t{units_per_pixel} * U::elements;
    const uint64_t key = read_seed(seed_memory, seed);
    ColumnSums<U> total;
    total.clear();
    if (column < units_per_pixel)
        for (int64_t pixel = begin + threadIdx.y; pixel < end; pixel += blockDim.y) {
            const int64_t index = pixel * units_per_pixel + column;
            U unit;
            unit.load_plain(grad + index * U::quads);
            total.template add_and_prune<N>(unit, index * U::elements, key);
        }
    total.reduce(reinterpret_cast<float*>(memory), [&](int c, int element, float before, float after) {
        const int64_t channel = int64_t{first_column + c} * U::elements + element;
        if (channel < channels) {
            sums[2 * part * channels + channel] = before;
            sums[(2 * part + 1) * channels + channel] = after;
        }
    });
}

// Computes ratio[channel] from the sums of all parts.
__global__ void __launch_bounds__(256) finish_channels(const float* sums, float* ratio, int parts, int64_t channels) {
    const int64_t channel = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (channel >= channels) return;
    float dense = 0.0f, kept = 0.0f;
    for (int part = 0; part < parts; ++part) {
        dense += sums[2 * part * channels + channel];
        kept += sums[(2 * part + 1) * channels + channel];
    }
    ratio[channel] = ratio_of(dense, kept);
}

// Prunes and multiplies by ratio[channel].
template <class Format, int M, int N, int MODE>
__global__ void __launch_bounds__(256, MIN_BLOCKS(M))
    prune_and_multiply(const uint4* grad, uint4* pruned, const float* ratio, int64_t units, int units_per_pixel,
                       const uint64_t* seed_memory, uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    const int64_t index = int64_t{blockIdx.x} * 256 + threadIdx.x;
    if (index >= units) return;
    const float* channel = ratio + index % units_per_pixel * U::elements;
    U unit;
    unit.load(grad + index * U::quads);
    unit.template prune<N>(index * U::elements, read_seed(seed_memory, seed));
    UNROLL
    for (int i = 0; i < U::elements; ++i) unit.multiply(i, channel[i]);
    unit.store(pruned + index * U::quads);
}

// A block prunes and rescales one row of a matrix, which it reads twice (the second time from the cache).
template <class Format, int M, int N, int MODE>
__global__ void __launch_bounds__(256, MIN_BLOCKS(M))
    prune_and_rescale_rows(const uint4* grad, uint4* pruned, int units_per_row, const uint64_t* seed_memory,
                           uint64_t seed) {
    using U = Unit<Format, M, MODE>;
    DYNAMIC_SHARED(memory);
    float* partial = reinterpret_cast<float*>(memory);
    const int64_t row = blockIdx.x;
    const uint64_t key = read_seed(seed_memory, seed);
    float dense = 0.0f, kept = 0.0f;
    for (int column = threadIdx.x; column < units_per_row; column += blockDim.x) {
        const int64_t index = row * units_per_row + column;
        U unit;
        unit.load_plain(grad + index * U::quads);
        ColumnSums<U> sums;
        sums.clear();
        sums.template add_and_prune<N>(unit, index * U::elements, key);
        UNROLL
        for (int i = 0; i < U::elements; ++i) {
            dense += sums.dense[i];
            kept += sums.kept[i];
        }
    }
    partial[threadIdx.x] = dense;
    partial[blockDim.x + threadIdx.x] = kept;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {  // blockDim.x is a power of two
        __syncthreads();
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
            partial[blockDim.x + threadIdx.x] += partial[blockDim.x + threadIdx.x + half];
        }
    }
    __syncthreads();
    const float ratio = ratio_of(partial[0], partial[blockDim.x]);
    for (int column = threadIdx.x; column < units_per_row; column += blockDim.x) {
        const int64_t index = row * units_per_row + column;
        U unit;
        unit.load(grad + index * U::quads);
        unit.template prune<N>(index * U::elements, key);
        UNROLL
        for (int i = 0; i < U::elements; ++i) unit.multiply(i, ratio);
        unit.store(pruned + index * U::quads);
    }
}

}  // namespace pdt
