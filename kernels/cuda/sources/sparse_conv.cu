// Convolution with a fixed sparsity mask, without work for masked weights. `kernels.sparse_conv.cuda_plan` selects the
// kernels and builds their lists.
//
// A *tap* is a weight that is not masked. A load of a warp may feed only one multiply-add per lane, and a multiprocessor
// has four times as many multipliers as loads per cycle. Therefore a thread sums a tile of positions in registers, and
// adjacent taps (a square of four, or a pair) share the values that they read.
//
// A tile that would cross the edge starts earlier, so that no thread reads beyond the edge. Positions that the previous
// tile also covers are neither stored nor summed.
#include "device.cuh"
#include "image_blocks.cuh"

namespace pdt {

// One tile of an output, and the number of tiles.
template <int ROWS, int COLUMNS>
struct Tile {
    int row, column, covered_rows, covered_columns;  // origin, and rows and columns that the previous tile covers

    static HOST_DEVICE int down(int rows) { return (rows + ROWS - 1) / ROWS; }
    static HOST_DEVICE int across(int columns) { return (columns + COLUMNS - 1) / COLUMNS; }
    HOST_DEVICE Tile(int number, int rows, int columns) {
        const int y = number / across(columns) * ROWS, x = number % across(columns) * COLUMNS;
        row = y + ROWS <= rows ? y : rows - ROWS;
        column = x + COLUMNS <= columns ? x : columns - COLUMNS;
        covered_rows = y - row;
        covered_columns = x - column;
    }
};

// Calls visit(line, y) for each line y of input that DOWN x RIGHT adjacent taps of a tile read.
template <int ROWS, int COLUMNS, int STEP, int DOWN, int RIGHT, class Visit>
HOST_DEVICE void for_each_line(const uint32_t* from, int in_row, int in_column, const Visit& visit) {
    static_assert(RIGHT == 1 || STEP == 1);
    const int step = STEP ? STEP : in_column;
    UNROLL
    for (int y = 0; y < ROWS + DOWN - 1; ++y) {
        uint32_t line[COLUMNS + RIGHT - 1];
        const uint32_t* begin = from + int64_t{y} * in_row * lanes;
        UNROLL
        for (int x = 0; x < COLUMNS + RIGHT - 1; ++x) line[x] = begin[x * step * lanes];
        visit(line, y);
    }
}

// Sums of one tile of one channel of the result, for the images in the words of a lane.
template <class Format, int ROWS, int COLUMNS, int STEP>
struct TileSums {
    using W = Word<Format>;
    float sum[ROWS][COLUMNS][W::images];

    HOST_DEVICE void clear() {
        UNROLL
        for (int row = 0; row < ROWS; ++row) {
            UNROLL
            for (int column = 0; column < COLUMNS; ++column) {
                UNROLL
                for (int i = 0; i < W::images; ++i) sum[row][column][i] = 0.0f;
            }
        }
    }

    // Adds the groups first .. last - 1 of DOWN x RIGHT adjacent taps. `value` starts with the values of group 0.
    template <int DOWN, int RIGHT>
    HOST_DEVICE void add(const uint32_t* in, int in_row, int in_column, const int* offset, const float* value, int first,
                         int last) {
        for (int group = first; group < last; ++group) {
            float factor[DOWN * RIGHT];
            if constexpr (DOWN * RIGHT == 4) {
                const uint4 four = reinterpret_cast<const uint4*>(value)[group];
                factor[0] = float_of_bits(four.x);
                factor[1] = float_of_bits(four.y);
                factor[2] = float_of_bits(four.z);
                factor[3] = float_of_bits(four.w);
            } else {
                UNROLL
                for (int i = 0; i < DOWN * RIGHT; ++i) factor[i] = value[group * DOWN * RIGHT + i];
            }
            const uint32_t* from = in + int64_t{offset[group]} * lanes;
            for_each_line<ROWS, COLUMNS, STEP, DOWN, RIGHT>(
                from, in_row, in_column, [&](const uint32_t(&line)[COLUMNS + RIGHT - 1], int y) {
                    UNROLL
                    for (int i = 0; i < W::images; ++i) {
                        UNROLL
                        for (int x = 0; x < COLUMNS + RIGHT - 1; ++x) {
                            const float input = W::decode(line[x], i);
                            UNROLL
                            for (int tap = 0; tap < DOWN * RIGHT; ++tap) {
                                const int row = y - tap / RIGHT, column = x - tap % RIGHT;
                                if (row >= 0 && row < ROWS && column >= 0 && column < COLUMNS)
                                    sum[row][column][i] += factor[tap] * input;
                            }
                        }
                    }
                });
        }
    }
};

// out[channel] at each position is the sum of value * in[offset] over the taps of the channel. A warp has a tile of one
// channel; `order` sorts the channels so that the warps of a block have similar numbers of taps.
//
// first: [squares, pairs, singles][channels + 1], first group of each channel in the order of `order`. offset: offset of each
// group. value: values of all squares, then of all pairs, then of all singles. Offsets and distances are in vectors.
template <class Format, int ROWS, int COLUMNS, int STEP>
__global__ void __launch_bounds__(128, 5)
    sum_taps(const uint32_t* in, uint32_t* out, const int* order, const int* first, const int* offset,
             const float* value, int squares, int pairs, int rows, int columns, int channels, int64_t in_block, int in_row,
             int in_column, int64_t out_begin, int64_t out_block, int64_t out_plane, int64_t out_row, int out_column) {
    using T = Tile<ROWS, COLUMNS>;
    const int sets = (channels + blockDim.y - 1) / blockDim.y, tiles = T::down(rows) * T::across(columns);
    const int rank = static_cast<int>(blockIdx.x % sets) * blockDim.y + threadIdx.y, number = blockIdx.x / sets;
    if (rank >= channels) return;
    const T tile(number % tiles, rows, columns);
    const int64_t block = number / tiles;
    in += (block * in_block + int64_t{tile.row} * in_row + int64_t{tile.column} * in_column) * lanes + threadIdx.x;

    TileSums<Format, ROWS, COLUMNS, STEP> sums;
    sums.clear();
    if constexpr (STEP == 1) {
        sums.template add<2, 2>(in, in_row, in_column, offset, value, first[rank], first[rank + 1]);
        first += channels + 1;
        offset += squares;
        value += 4 * squares;
        sums.template add<1, 2>(in, in_row, in_column, offset, value, first[rank], first[rank + 1]);
        first += channels + 1;
        offset += pairs;
        value += 2 * pairs;
    } else {
        first += 2 * (channels + 1);  // with a step, there are no squares or pairs
    }
    sums.template add<1, 1>(in, in_row, in_column, offset, value, first[rank], first[rank + 1]);

    out += (out_begin + block * out_block + order[rank] * out_plane + tile.row * out_row +
            int64_t{tile.column} * out_column) * lanes + threadIdx.x;
    UNROLL
    for (int row = 0; row < ROWS; ++row) {
        UNROLL
        for (int column = 0; column < COLUMNS; ++column)
            if (row >= tile.covered_rows && column >= tile.covered_columns)
                out[(row * out_row + int64_t{column} * out_column) * lanes] = Word<Format>::encode(sums.sum[row][column]);
    }
}

// Returns the sum over the lanes of a warp in every lane, in a fixed order.
HOST_DEVICE float sum_of_lanes(float value) {
    UNROLL
    for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// partial[part][slot] is the sum of dO * in[offset of a tap] over one part of all tiles and images. A block has a set of
// GROUPS groups of DOWN x RIGHT adjacent taps of one output channel, so that dO is read once for all of them.
template <class Format, int ROWS, int COLUMNS, int STEP, int DOWN, int RIGHT, int GROUPS>
__global__ void __launch_bounds__(128, 4)
    sum_products(const uint32_t* in, const uint32_t* grad, const int* plane, const int* offset, float* partial, int sets,
                 int parts, int blocks, int rows, int columns, int64_t in_block, int in_row, int in_column,
                 int64_t grad_begin, int64_t grad_block, int grad_row, int first_slot, int slots) {
    using W = Word<Format>;
    using T = Tile<ROWS, COLUMNS>;
    constexpr int taps = GROUPS * DOWN * RIGHT;
    DYNAMIC_SHARED(memory);
    float* of_warps = reinterpret_cast<float*>(memory);
    const int set = blockIdx.x % sets, part = blockIdx.x / sets, warps = blockDim.y;
    const int tiles = T::down(rows) * T::across(columns);
    grad += (grad_begin + plane[set]) * lanes + threadIdx.x;
    in += threadIdx.x;

    float sum[GROUPS][DOWN * RIGHT];
    UNROLL
    for (int group = 0; group < GROUPS; ++group) {
        UNROLL
        for (int tap = 0; tap < DOWN * RIGHT; ++tap) sum[group][tap] = 0.0f;
    }
    for (int unit = part * warps + threadIdx.y; unit < blocks * tiles; unit += parts * warps) {
        const T tile(unit % tiles, rows, columns);
        const int64_t block = unit / tiles;
        const uint32_t* of_grad = grad + (block * grad_block + int64_t{tile.row} * grad_row + tile.column) * lanes;
        uint32_t factor[ROWS][COLUMNS];
        UNROLL
        for (int row = 0; row < ROWS; ++row) {
            UNROLL
            for (int column = 0; column < COLUMNS; ++column) {
                const bool fresh = row >= tile.covered_rows && column >= tile.covered_columns;
                factor[row][column] = fresh ? of_grad[(int64_t{row} * grad_row + column) * lanes] : 0;
            }
        }
        const uint32_t* of_in =
            in + (block * in_block + int64_t{tile.row} * in_row + int64_t{tile.column} * in_column) * lanes;
        UNROLL
        for (int group = 0; group < GROUPS; ++group) {
            const uint32_t* from = of_in + int64_t{offset[set * GROUPS + group]} * lanes;
            for_each_line<ROWS, COLUMNS, STEP, DOWN, RIGHT>(
                from, in_row, in_column, [&](const uint32_t(&line)[COLUMNS + RIGHT - 1], int y) {
                    UNROLL
                    for (int i = 0; i < W::images; ++i) {
                        UNROLL
                        for (int x = 0; x < COLUMNS + RIGHT - 1; ++x) {
                            const float input = W::decode(line[x], i);
                            UNROLL
                            for (int tap = 0; tap < DOWN * RIGHT; ++tap) {
                                const int row = y - tap / RIGHT, column = x - tap % RIGHT;
                                if (row >= 0 && row < ROWS && column >= 0 && column < COLUMNS)
                                    sum[group][tap] += W::decode(factor[row][column], i) * input;
                            }
                        }
                    }
                });
        }
    }

    UNROLL
    for (int group = 0; group < GROUPS; ++group) {
        UNROLL
        for (int tap = 0; tap < DOWN * RIGHT; ++tap) {
            const float total = sum_of_lanes(sum[group][tap]);
            if (threadIdx.x == 0) of_warps[threadIdx.y * taps + group * DOWN * RIGHT + tap] = total;
        }
    }
    __syncthreads();
    const int self = threadIdx.y * lanes + threadIdx.x;
    if (self < taps) {
        float total = 0.0f;
        for (int warp = 0; warp < warps; ++warp) total += of_warps[warp * taps + self];
        partial[int64_t{part} * slots + first_slot + set * taps + self] = total;
    }
}

// dense[index[slot]] is the sum over all parts. A slot that only completes a set has the index -1.
template <class Format>
__global__ void __launch_bounds__(256)
    finish_products(const float* partial, typename Format::Bits* dense, const int64_t* index, int parts, int slots) {
    const int slot = blockIdx.x * 256 + threadIdx.x;
    if (slot >= slots || index[slot] < 0) return;
    float sum = 0.0f;
    for (int part = 0; part < parts; ++part) sum += partial[int64_t{part} * slots + slot];
    dense[index[slot]] = Format::encode(sum);
}

}  // namespace pdt
