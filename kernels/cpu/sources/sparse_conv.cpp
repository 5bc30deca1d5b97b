// Convolutions that skip weights: activations in blocks of images, each weight that is there against a vector of them.
//
// A blocked activation is [N / lanes][C][H'][W'][lanes]: a vector holds one place of one channel for as many images as it
// has lanes, and H' and W' have a border of zeros where an offset may lead out of the image. So a weight is one number
// for a whole vector, whatever its neighbours are, and no weight that is absent costs anything.
//
// A *tap* is a weight that is there: where its input lies, relative to the place of the output, and its value.
#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "float_formats.h"
#include "lanes.h"

namespace pdt {
namespace {

constexpr int width = lanes<float>;
// Sums of so many rows and columns stay in registers. Neighbouring taps read much of the same input, the more so the
// squarer the tile is.
constexpr int tile_rows = vector_bytes == 64 ? 4 : 2, tile_columns = 4;
constexpr int64_t cache_vectors = (int64_t{768} << 10) / vector_bytes;  // of input, most of a second-level cache
constexpr int kernel_taps = 4;  // of a pattern

using Lanes = Vector<float>;

// Distances are counted in vectors.
struct Grid {
    int64_t rows, columns;           // places of the output
    int64_t in_channels;
    int64_t in_block, in_row, in_column;
    int64_t out_block, out_plane, out_row, out_column;
};

HOST_DEVICE Lanes at(const float* base, int64_t vectors) { return load<float>(base + vectors * width); }

// The same value, of which the compiler no longer knows that it could be read from memory again.
HOST_DEVICE Lanes in_register(Lanes value) {
#if defined(__AVX512F__)
    asm("" : "+v"(value));
#elif defined(__x86_64__)
    asm("" : "+x"(value));
#endif
    return value;
}

// Taps of one output channel: squares, of four neighbours each, and others. A square's offset is that of its first tap, and
// its values are those of its upper and then of its lower two.
struct Taps {
    const int32_t *square_offset, *offset;
    const float *square_value, *value;
    int64_t squares, others;
};

// Rows x Columns places of one output channel. Step is the distance of neighbouring columns of the input, 0 if it is
// none of those that are known here. Squares are for neighbouring rows and columns, one apart.
template <int Rows, int Columns, int Step>
HOST_DEVICE void sum_places(const Grid& grid, const float* in, const Taps& taps, float* out) {
    const int64_t step = Step ? Step : grid.in_column;
    Lanes sum[Rows][Columns] = {};
    if constexpr (Step == 1) {
        // Each row of input is read once, for the lower taps of one row of places and the upper ones of the next.
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

// Rows of the output, `Rows` at a time and the rest one by one, in pieces of `Columns` and then of half as many.
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

// Rows of the output whose input stays in the cache while all output channels read it; whole tiles of them.
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

// The sum of neighbouring lanes of two vectors: the first's in the first half.
HOST_DEVICE Lanes fold(Lanes a, Lanes b) {
    using Sequence = std::make_index_sequence<width>;
    return even_lanes(a, b, Sequence{}) + odd_lanes(a, b, Sequence{});
}

// Adds the sum of each vector's lanes.
template <int Count>
HOST_DEVICE void add_totals(const Lanes (&value)[Count], float* sums) {
    static_assert(Count == 1 || Count == 4);
    Lanes folded = Count == 4 ? fold(fold(value[0], value[1 % Count]), fold(value[2 % Count], value[3 % Count])) : value[0];
    for (int lanes_each = Count == 4 ? width / 4 : width; lanes_each > 1; lanes_each /= 2) folded = fold(folded, folded);
    for (int i = 0; i < Count; ++i) sums[i] += folded[i];
}

// Adds to the gradients of one kernel's taps the products of some rows.
template <int Taps>
HOST_DEVICE void add_products(const Grid& grid, int64_t rows, const float* grad, const float* in, const int32_t* offset,
                              float* sums) {
    Lanes sum[Taps] = {}, other[Taps] = {};  // two chains a tap: one alone would wait for each of its sums
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

// The same of a square of taps, of neighbouring columns: each row of input is read once, for the lower taps of one row of
// places and the upper ones of the next.
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

// Whether four taps, in the order of their places, are a square of neighbours.
HOST_DEVICE bool is_square(const Grid& grid, const int32_t* offset) {
    return offset[1] == offset[0] + 1 && offset[2] == offset[0] + grid.in_row && offset[3] == offset[2] + 1;
}

// Every thread sums blocks and rows of its own, which do not depend on when it runs; then threads are added in order.
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

// An activation as torch has it, and as it is blocked. Distances of `plain` are counted in elements.
struct Layout {
    int64_t images, channels, rows, columns;
    int64_t image, channel, row, column;               // of the plain one
    int64_t top, left, padded_rows, padded_columns;    // of the blocked one
    int64_t plane() const { return padded_rows * padded_columns; }
    int64_t place(int64_t block, int64_t c, int64_t y, int64_t x) const {
        return ((block * channels + c) * plane() + (y + top) * padded_columns + x + left) * width;
    }
};

// Images x elements that lie side by side, turned into elements x images; `count` of either are there.
HOST_DEVICE void transpose(Vector<int32_t> (&tile)[width]) { deinterleave<int32_t, width>(tile); }

template <class Format>
HOST_DEVICE Vector<int32_t> load_floats(const typename Format::Bits* from, int64_t count) {
    Vector<int32_t> value{};
    if constexpr (sizeof(typename Format::Bits) == 4) {
        if (count >= width) return load<int32_t>(from);
        std::memcpy(&value, from, static_cast<std::size_t>(count) * sizeof *from);
    } else {
        for (int64_t e = 0; e < std::min<int64_t>(count, width); ++e)
            value[e] = static_cast<int32_t>(bits_of_float(Format::decode(from[e])));
    }
    return value;
}

template <class Format>
HOST_DEVICE void store_floats(typename Format::Bits* to, Vector<int32_t> value, int64_t count) {
    if constexpr (sizeof(typename Format::Bits) == 4) {
        if (count >= width) return store<int32_t>(to, value);
        std::memcpy(to, &value, static_cast<std::size_t>(count) * sizeof *to);
    } else {
        for (int64_t e = 0; e < std::min<int64_t>(count, width); ++e)
            to[e] = Format::encode(float_of_bits(static_cast<uint32_t>(value[e])));
    }
}

// Calls visit(plain element, blocked place, distance of neighbours there, how many) for every run of up to `width`
// neighbours of the plain activation: channels where these lie side by side, columns otherwise.
template <class Visit>
HOST_DEVICE void for_each_run(const Layout& layout, int64_t block, int64_t row, const Visit& visit) {
    const int64_t first = block * width * layout.image + row * layout.row;
    if (layout.channel == 1) {
        for (int64_t c = 0; c < layout.channels; c += width)
            for (int64_t x = 0; x < layout.columns; ++x)
                visit(first + c + x * layout.column, layout.place(block, c, row, x), layout.plane() * width,
                      std::min<int64_t>(width, layout.channels - c));
    } else {
        for (int64_t c = 0; c < layout.channels; ++c)
            for (int64_t x = 0; x < layout.columns; x += width)
                visit(first + c * layout.channel + x, layout.place(block, c, row, x), int64_t{width},
                      std::min<int64_t>(width, layout.columns - x));
    }
}

// The border, and images that fill up the last block, become zero.
template <class Format>
void to_blocks(const Layout& layout, const typename Format::Bits* plain, float* blocked, int threads) {
    const int64_t blocks = (layout.images + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) collapse(2)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t y = 0; y < layout.padded_rows; ++y) {
            const int64_t row = y - layout.top;
            const bool border = row < 0 || row >= layout.rows;
            for (int64_t c = 0; c < layout.channels; ++c) {
                float* line = blocked + ((block * layout.channels + c) * layout.plane() + y * layout.padded_columns) * width;
                const int64_t right = layout.left + layout.columns;
                std::fill(line, line + (border ? layout.padded_columns : layout.left) * width, 0.0f);
                if (!border) std::fill(line + right * width, line + layout.padded_columns * width, 0.0f);
            }
            if (border) continue;
            const int64_t images = std::min<int64_t>(width, layout.images - block * width);
            for_each_run(layout, block, row, [&](int64_t element, int64_t place, int64_t distance, int64_t count) {
                Vector<int32_t> tile[width];
                UNROLL
                for (int image = 0; image < width; ++image)
                    tile[image] = image < images ? load_floats<Format>(plain + element + image * layout.image, count)
                                                 : Vector<int32_t>{};
                transpose(tile);
                UNROLL
                for (int e = 0; e < width; ++e) {
                    const int neighbour = reversed_bits(e, width);
                    if (neighbour < count)
                        store<int32_t>(reinterpret_cast<int32_t*>(blocked + place + neighbour * distance), tile[e]);
                }
            });
        }
    }
}

template <class Format>
void from_blocks(const Layout& layout, const float* blocked, typename Format::Bits* plain, int threads) {
    const int64_t blocks = (layout.images + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) collapse(2)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t row = 0; row < layout.rows; ++row) {
            const int64_t images = std::min<int64_t>(width, layout.images - block * width);
            for_each_run(layout, block, row, [&](int64_t element, int64_t place, int64_t distance, int64_t count) {
                Vector<int32_t> tile[width];
                UNROLL
                for (int e = 0; e < width; ++e)
                    tile[e] = e < count ? load<int32_t>(reinterpret_cast<const int32_t*>(blocked + place + e * distance))
                                        : Vector<int32_t>{};
                transpose(tile);
                UNROLL
                for (int i = 0; i < width; ++i) {
                    const int image = reversed_bits(i, width);
                    if (image < images) store_floats<Format>(plain + element + image * layout.image, tile[i], count);
                }
            });
        }
    }
}

}  // namespace
}  // namespace pdt

// Each of the first three returns 0; the third may find no memory, and returns 2. Arrays of distances and sizes are in the
// order of the structs.

// format: 0 fp32, 1 bf16, 2 fp16. to_blocks: nonzero into the blocked activation, 0 out of it.
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

// out[channel] at each place of the grid: the sum over the channel's taps of value * in at the tap's offset. square and
// first say where each channel's squares and its other taps begin; values are those of all squares and then of the others.
extern "C" int pdt_sum_taps(const int64_t* grid, const float* in, float* out, int64_t blocks, int64_t channels,
                            const int64_t* square, const int32_t* square_offset, const int64_t* first, const int32_t* offset,
                            const float* value, int threads) {
    pdt::sum_taps({grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], grid[7], grid[8], grid[9]}, in, out, blocks,
                  channels, square, square_offset, first, offset, value, threads);
    return 0;
}

// gradients[kernel][tap]: the sum over images and places of grad at the kernel's plane times in at the tap's offset.
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

// Images of a block.
extern "C" int pdt_block_images() { return pdt::width; }
