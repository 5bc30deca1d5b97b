// Convolution with a fixed sparsity mask, without work for masked weights. A tap (a weight that is not masked) is multiplied
// by vectors of images.
//
// A blocked activation is [N / lanes][C][H'][W'][lanes]: a vector holds one position of one channel for as many images as
// it has lanes, and H' and W' include a border of zeros where an offset may lead out of the image. A weight is one number
// for a whole vector, so a masked weight costs nothing, whatever its neighbours are.
//
// Each tap has the memory offset of its input relative to the position of the output, and a value.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "image_blocks.h"
#include "lanes.h"

namespace pdt {
namespace {

// Size of a tile whose sums stay in registers. Adjacent taps share most of their input, especially in square tiles.
constexpr int tile_rows = vector_bytes == 64 ? 4 : 2, tile_columns = 4;
constexpr int64_t cache_vectors = (int64_t{768} << 10) / vector_bytes;  // of input: most of a second-level cache
constexpr int kernel_taps = 4;  // taps of a pattern

using Lanes = Vector<float>;

// Output positions and memory layout; distances are in vectors.
struct Grid {
    int64_t rows, columns;           // positions of the output
    int64_t in_channels;
    int64_t in_block, in_row, in_column;
    int64_t out_block, out_plane, out_row, out_column;
};

HOST_DEVICE Lanes at(const float* base, int64_t vectors) { return load<float>(base + vectors * width); }

// Taps of one output channel: squares of four adjacent taps, and others. The offset of a square is that of its first tap;
// its values are those of the upper two taps, then those of the lower two.
struct Taps {
    const int32_t *square_offset, *offset;
    const float *square_value, *value;
    int64_t squares, others;
};

// Sums Rows x Columns positions of one output channel. Step is the distance of the input columns that adjacent positions
// read, or 0 if it is known only at run time. Squares require a distance of 1 in rows and columns.
template <int Rows, int Columns, int Step>
HOST_DEVICE void sum_places(const Grid& grid, const float* in, const Taps& taps, float* out) {
    const int64_t step = Step ? Step : grid.in_column;
    Lanes sum[Rows][Columns] = {};
    if constexpr (Step == 1) {
        // Each row of input is read once, for the lower taps of one row of positions and the upper taps of the next.
        for (int64_t square = 0; square < taps.squares; ++square) {
            const float* from = in + taps.square_offset[square] * int64_t{width};
            const float* value = taps.square_value + 4 * square;
            const Lanes factor[4] = {value[0] - Lanes{}, value[1] - Lanes{}, value[2] - Lanes{}, value[3] - Lanes{}};
            Lanes line[Columns + 1];
            UNROLL
            for (int column = 0; column <= Columns; ++column) line[column] = in_register(at(from, column));
            UNROLL
            for (int row = 0; row < Rows; ++row) {
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    sum[row][column] += factor[0] * line[column];
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    sum[row][column] += factor[1] * line[column + 1];
                UNROLL
                for (int column = 0; column <= Columns; ++column) line[column] = in_register(at(from, (row + 1) * grid.in_row + column));
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    sum[row][column] += factor[2] * line[column];
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    sum[row][column] += factor[3] * line[column + 1];
            }
        }
    }
    for (int64_t tap = 0; tap < taps.others; ++tap) {
        const float* from = in + taps.offset[tap] * int64_t{width};
        const Lanes factor = taps.value[tap] - Lanes{};
        UNROLL
        for (int row = 0; row < Rows; ++row) {
            UNROLL
            for (int column = 0; column < Columns; ++column)
                sum[row][column] += factor * at(from, row * grid.in_row + column * step);
        }
    }
    UNROLL
    for (int row = 0; row < Rows; ++row) {
        UNROLL
        for (int column = 0; column < Columns; ++column)
            store<float>(out + (row * grid.out_row + column * grid.out_column) * width, sum[row][column]);
    }
}

// Sums rows of the output, `Rows` at a time and the rest one by one, in pieces of `Columns` columns, then of half as many.
template <int Rows, int Columns, int Step>
void sum_rows(const Grid& grid, int64_t rows, int64_t first, const float* in, const Taps& taps, float* out) {
    for (; first + Columns <= grid.columns; first += Columns) {
        int64_t row = 0;
        for (; row + Rows <= rows; row += Rows)
            sum_places<Rows, Columns, Step>(grid, in + (row * grid.in_row + first * grid.in_column) * width, taps,
                                            out + (row * grid.out_row + first * grid.out_column) * width);
        for (; row < rows; ++row)
            sum_places<1, Columns, Step>(grid, in + (row * grid.in_row + first * grid.in_column) * width, taps,
                                         out + (row * grid.out_row + first * grid.out_column) * width);
    }
    if constexpr (Columns > 1) {
        if (first < grid.columns) sum_rows<Rows, Columns / 2, Step>(grid, rows, first, in, taps, out);
    }
}

// Returns the number of output rows, in whole tiles, whose input stays in the cache while all output channels read it.
int64_t rows_at_once(const Grid& grid) {
    const int64_t fit = cache_vectors / std::max<int64_t>(1, grid.in_channels * grid.in_row);
    return std::min(grid.rows, std::max<int64_t>(tile_rows, fit / tile_rows * tile_rows));
}

void sum_taps(const Grid& grid, const float* in, float* out, int64_t blocks, int64_t channels, const int64_t* square,
              const int32_t* square_offset, const int64_t* first, const int32_t* offset, const float* value, int threads) {
    const int64_t at_once = rows_at_once(grid), tiles = (grid.rows + at_once - 1) / at_once;
    const auto rows_of_step = grid.in_column == 1   ? sum_rows<tile_rows, tile_columns, 1>
                              : grid.in_column == 2 ? sum_rows<tile_rows, tile_columns, 2>
                                                    : sum_rows<tile_rows, tile_columns, 0>;
    const float* others = value + 4 * square[channels];
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t unit = 0; unit < blocks * tiles; ++unit) {
        const int64_t block = unit / tiles, row = unit % tiles * at_once, rows = std::min(at_once, grid.rows - row);
        const float* from = in + (block * grid.in_block + row * grid.in_row) * width;
        float* to = out + (block * grid.out_block + row * grid.out_row) * width;
        for (int64_t channel = 0; channel < channels; ++channel) {
            const Taps taps{square_offset + square[channel],     offset + first[channel],
                            value + 4 * square[channel],         others + first[channel],
                            square[channel + 1] - square[channel], first[channel + 1] - first[channel]};
            rows_of_step(grid, rows, 0, from, taps, to + channel * grid.out_plane * width);
        }
    }
}

// Returns the sums of adjacent lanes of two vectors, those of the first vector in the first half.
HOST_DEVICE Lanes fold(Lanes a, Lanes b) {
    using Sequence = std::make_index_sequence<width>;
    return even_lanes(a, b, Sequence{}) + odd_lanes(a, b, Sequence{});
}

// Adds the sum of the lanes of each vector to `sums`.
template <int Count>
HOST_DEVICE void add_totals(const Lanes (&value)[Count], float* sums) {
    static_assert(Count == 1 || Count == 4);
    Lanes folded = Count == 4 ? fold(fold(value[0], value[1 % Count]), fold(value[2 % Count], value[3 % Count])) : value[0];
    for (int lanes_each = Count == 4 ? width / 4 : width; lanes_each > 1; lanes_each /= 2) folded = fold(folded, folded);
    for (int i = 0; i < Count; ++i) sums[i] += folded[i];
}

// Adds the products of some rows to the gradients of the taps of one kernel.
template <int Taps>
HOST_DEVICE void add_products(const Grid& grid, int64_t rows, const float* grad, const float* in, const int32_t* offset,
                              float* sums) {
    Lanes sum[Taps] = {}, other[Taps] = {};  // two chains per tap: one alone would wait for each addition
    for (int64_t row = 0; row < rows; ++row) {
        const float* of_grad = grad + row * grid.out_row * width;
        const float* of_in = in + row * grid.in_row * width;
        int64_t column = 0;
        for (; column + 2 <= grid.columns; column += 2) {
            const Lanes even = at(of_grad, column * grid.out_column), odd = at(of_grad, (column + 1) * grid.out_column);
            UNROLL
            for (int tap = 0; tap < Taps; ++tap) {
                sum[tap] += even * at(of_in, offset[tap] + column * grid.in_column);
                other[tap] += odd * at(of_in, offset[tap] + (column + 1) * grid.in_column);
            }
        }
        if (column < grid.columns) {
            const Lanes last = at(of_grad, column * grid.out_column);
            UNROLL
            for (int tap = 0; tap < Taps; ++tap) sum[tap] += last * at(of_in, offset[tap] + column * grid.in_column);
        }
    }
    UNROLL
    for (int tap = 0; tap < Taps; ++tap) sum[tap] += other[tap];
    add_totals<Taps>(sum, sums);
}

// The same for a square of taps and a column distance of 1: each row of input is read once, for the lower taps of one row
// of positions and the upper taps of the next.
HOST_DEVICE void add_square_products(const Grid& grid, int64_t rows, const float* grad, const float* in, float* sums) {
    constexpr int columns = 4;
    Lanes sum[kernel_taps] = {}, other[kernel_taps] = {};
    int64_t first = 0;
    for (; first + columns <= grid.columns; first += columns) {
        Lanes line[columns + 1];
        UNROLL
        for (int column = 0; column <= columns; ++column) line[column] = in_register(at(in, first + column));
        for (int64_t row = 0; row < rows; ++row) {
            Lanes of_grad[columns];
            UNROLL
            for (int column = 0; column < columns; ++column)
                of_grad[column] = in_register(at(grad, row * grid.out_row + (first + column) * grid.out_column));
            UNROLL
            for (int column = 0; column < columns; column += 2) {
                sum[0] += of_grad[column] * line[column];
                sum[1] += of_grad[column] * line[column + 1];
                other[0] += of_grad[column + 1] * line[column + 1];
                other[1] += of_grad[column + 1] * line[column + 2];
            }
            UNROLL
            for (int column = 0; column <= columns; ++column)
                line[column] = in_register(at(in, (row + 1) * grid.in_row + first + column));
            UNROLL
            for (int column = 0; column < columns; column += 2) {
                sum[2] += of_grad[column] * line[column];
                sum[3] += of_grad[column] * line[column + 1];
                other[2] += of_grad[column + 1] * line[column + 1];
                other[3] += of_grad[column + 1] * line[column + 2];
            }
        }
    }
    for (; first < grid.columns; ++first) {
        for (int64_t row = 0; row < rows; ++row) {
            const Lanes of_grad = at(grad, row * grid.out_row + first * grid.out_column);
            UNROLL
            for (int tap = 0; tap < kernel_taps; ++tap)
                sum[tap] += of_grad * at(in, (row + tap / 2) * grid.in_row + first + tap % 2);
        }
    }
    UNROLL
    for (int tap = 0; tap < kernel_taps; ++tap) sum[tap] += other[tap];
    add_totals<kernel_taps>(sum, sums);
}

// Returns whether four taps, sorted by position, form a square.
HOST_DEVICE bool is_square(const Grid& grid, const int32_t* offset) {
    return offset[1] == offset[0] + 1 && offset[2] == offset[0] + grid.in_row && offset[3] == offset[2] + 1;
}

// Each thread sums a fixed set of blocks and rows; the sums of threads are then added in order.
void sum_products(const Grid& grid, const float* in, const float* grad, float* gradients, int64_t blocks,
                  int64_t kernels, int64_t taps_each, const int32_t* plane, const int32_t* offset, int threads) {
    const int64_t at_once = rows_at_once(grid), tiles = (grid.rows + at_once - 1) / at_once, units = blocks * tiles;
    const int64_t taps = kernels * taps_each;
    std::vector<float> sums(static_cast<std::size_t>(threads * taps));
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int64_t thread = 0; thread < threads; ++thread) {
        float* own = sums.data() + thread * taps;
        for (int64_t unit = thread * units / threads; unit < (thread + 1) * units / threads; ++unit) {
            const int64_t block = unit / tiles, row = unit % tiles * at_once, rows = std::min(at_once, grid.rows - row);
            const float* from = in + (block * grid.in_block + row * grid.in_row) * width;
            const float* of_grad = grad + (block * grid.out_block + row * grid.out_row) * width;
            for (int64_t kernel = 0; kernel < kernels; ++kernel) {
                const float* of_kernel = of_grad + plane[kernel] * int64_t{width};
                int64_t tap = kernel * taps_each;
                const int64_t end = tap + taps_each;
                for (; tap + kernel_taps <= end; tap += kernel_taps) {
                    if (grid.in_column == 1 && is_square(grid, offset + tap))
                        add_square_products(grid, rows, of_kernel, from + offset[tap] * int64_t{width}, own + tap);
                    else
                        add_products<kernel_taps>(grid, rows, of_kernel, from, offset + tap, own + tap);
                }
                for (; tap < end; ++tap) add_products<1>(grid, rows, of_kernel, from, offset + tap, own + tap);
            }
        }
    }
    for (int64_t tap = 0; tap < taps; ++tap) {
        float sum = 0;
        for (int64_t thread = 0; thread < threads; ++thread) sum += sums[static_cast<std::size_t>(thread * taps + tap)];
        gradients[tap] = sum;
    }
}

}  // namespace
}  // namespace pdt

// The functions below return 0, or 2 if memory cannot be allocated. Arrays of sizes and distances have the order of the
// fields of the structs.

// format: 0 fp32, 1 bf16, 2 fp16. to_blocks: nonzero converts into the blocked activation, 0 out of it.
extern "C" int pdt_blocks(const int64_t* numbers, void* plain, float* blocked, int format, int to_blocks, int threads) {
    const pdt::Layout layout{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],  numbers[5],
                             numbers[6], numbers[7], numbers[8], numbers[9], numbers[10], numbers[11]};
    const auto convert = [&](auto of) {
        using Format = decltype(of);
        auto* elements = static_cast<typename Format::Bits*>(plain);
        if (to_blocks)
            pdt::to_blocks<Format>(layout, elements, blocked, threads);
        else
            pdt::from_blocks<Format>(layout, blocked, elements, threads);
    };
    switch (format) {
        case 0: convert(pdt::Float32{}); break;
        case 1: convert(pdt::BFloat16{}); break;
        default: convert(pdt::Float16{}); break;
    }
    return 0;
}

// out[channel] at each position of the grid is the sum of value * in[offset] over the taps of the channel. square and first
// contain the index at which the squares and the other taps of each channel begin; values are those of all squares, then
// those of the others.
extern "C" int pdt_sum_taps(const int64_t* grid, const float* in, float* out, int64_t blocks, int64_t channels,
                            const int64_t* square, const int32_t* square_offset, const int64_t* first, const int32_t* offset,
                            const float* value, int threads) {
    pdt::sum_taps({grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], grid[7], grid[8], grid[9]}, in, out, blocks,
                  channels, square, square_offset, first, offset, value, threads);
    return 0;
}

// gradients[kernel][tap] is the sum of grad[plane of the kernel] * in[offset of the tap] over images and positions.
extern "C" int pdt_sum_products(const int64_t* grid, const float* in, const float* grad, float* gradients,
                                int64_t blocks, int64_t kernels, int64_t taps_each, const int32_t* plane,
                                const int32_t* offset, int threads) {
    try {
        pdt::sum_products({grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], grid[7], grid[8], grid[9]}, in, grad,
                          gradients, blocks, kernels, taps_each, plane, offset, threads);
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

// Returns the number of images in a block.
extern "C" int pdt_block_images() { return pdt::width; }
