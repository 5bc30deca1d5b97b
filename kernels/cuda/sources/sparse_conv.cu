// Convolutions that skip weights; `kernels.sparse_conv.cuda_plan` says which kernels one needs, and makes their lists.
//
// A *tap* is a weight that is there. Each load of a warp feeds as few as one multiply-add a lane, and a multiprocessor
// has four times as many multipliers as loads in a cycle: so a thread sums a tile of places in registers, and taps that
// are neighbours, a square of four or a pair, share what they read of it.
//
// A tile that would reach over the edge begins as far before it as it must: nothing beyond the edge is read, and places
// that the tile before has too are left out of what is stored or summed.
#include "device.cuh"
#include "image_blocks.cuh"

namespace pdt {

// Tiles of an output, and one of them.
template <int ROWS, int COLUMNS>
struct Tile {
    int row, column, covered_rows, covered_columns;  // where it begins; how many of its places another tile has

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

// Calls visit(line, y) for each line of input that DOWN x RIGHT neighbouring taps of a tile read: y rows down.
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

// The sums of one tile of one channel of the result, for the images in a lane's words.
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

    // Groups first .. last - 1, each of DOWN x RIGHT taps that are neighbours. `value` begins with group 0's.
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

// out[channel] at each place: the sum over the channel's taps of value * in at the tap's offset. A warp has a tile of one
// channel, `order` says which: the warps of a block have about as many taps.
//
// first: [squares, pairs, singles][channels + 1], groups in the order of `order`. offset: by group, in vectors. value: by
// group, all squares' before all pairs' before all singles'. Distances are counted in vectors.
template <class Format, int ROWS, int COLUMNS, int STEP>
__global__ void __launch_bounds__(128, 5)
    sum_taps(const uint32_t* in, uint32_t* out, const int* order, const int* first, const int* offset,
             const float* value, int squares, int pairs, int rows, int columns, int channels, int64_t in_block, int in_row,
             int in_column, int64_t out_begin, int64_t out_block, int64_t out_plane, int64_t out_row, int out_column) {
    using T = Tile<ROWS, COLUMNS>;
    const int sets = (channels + blockDim.y - 1) / blockDim.y, tiles = T::down(rows) * T::across(columns);
    const int place = static_cast<int>(blockIdx.x % sets) * blockDim.y + threadIdx.y, number = blockIdx.x / sets;
    if (place >= channels) return;
    const T tile(number % tiles, rows, columns);
    const int64_t block = number / tiles;
    in += (block * in_block + int64_t{tile.row} * in_row + int64_t{tile.column} * in_column) * lanes + threadIdx.x;

    TileSums<Format, ROWS, COLUMNS, STEP> sums;
    sums.clear();
    if constexpr (STEP == 1) {
        sums.template add<2, 2>(in, in_row, in_column, offset, value, first[place], first[place + 1]);
        first += channels + 1;
        offset += squares;
        value += 4 * squares;
        sums.template add<1, 2>(in, in_row, in_column, offset, value, first[place], first[place + 1]);
        first += channels + 1;
        offset += pairs;
        value += 2 * pairs;
    } else {
        first += 2 * (channels + 1);  // a step leaves no neighbours
    }
    sums.template add<1, 1>(in, in_row, in_column, offset, value, first[place], first[place + 1]);

    out += (out_begin + block * out_block + order[place] * out_plane + tile.row * out_row +
            int64_t{tile.column} * out_column) * lanes + threadIdx.x;
    UNROLL
    for (int row = 0; row < ROWS; ++row) {
        UNROLL
        for (int column = 0; column < COLUMNS; ++column)
            if (row >= tile.covered_rows && column >= tile.covered_columns)
                out[(row * out_row + int64_t{column} * out_column) * lanes] = Word<Format>::encode(sums.sum[row][column]);
    }
}

// The sum over a warp's lanes, in every lane, in an order that is always the same.
HOST_DEVICE float sum_of_lanes(float value) {
    UNROLL
    for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// partial[part][slot]: the sum over a part of all tiles and images of dO times the input at a tap's offset. A block has a
// set of GROUPS groups of DOWN x RIGHT neighbouring taps, all of one output channel, so that dO is read once for all.
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

// dense[index[slot]]: the sum over all parts; a slot that only fills up a set has no index (-1).
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
