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

#include "bf16_pairs.h"
#include "image_blocks.h"
#include "lanes.h"

namespace pdt {
namespace {

// Rows of a tile whose sums stay in registers. Adjacent taps share most of their input, especially in square tiles.
constexpr int tile_rows = vector_bytes == 64 ? 6 : 2;
constexpr int64_t cache_vectors = (int64_t{768} << 10) / vector_bytes;  // of input: most of a second-level cache
constexpr int kernel_taps = 4;  // taps of a pattern

using Lanes = Vector<float>;

// The arithmetic of numbers in blocks: `Factors` multiplies vectors by two taps and adds to sums in fp32.
template <class Number>
struct Arithmetic;

template <>
struct Arithmetic<float> {
    static constexpr int sums = 1;  // vectors of sums for a vector of numbers
    static constexpr int tile_columns = 4;

    class Factors {
      public:
        HOST_DEVICE Factors(float first, float second) : first_(first - Lanes{}), second_(second - Lanes{}) {}
        HOST_DEVICE void add(Lanes one, Lanes other, Lanes (&sum)[1]) const {
            sum[0] += first_ * one;
            sum[0] += second_ * other;
        }

      private:
        Lanes first_, second_;
    };
    static HOST_DEVICE Lanes multiply_add(Lanes sum, Lanes a, Lanes b) { return sum + a * b; }
    static HOST_DEVICE void store_sums(float* to, const Lanes (&sum)[1]) { store<float>(to, sum[0]); }
};

#if defined(__AVX512BF16__)
template <>
struct Arithmetic<int16_t> {
    static constexpr int sums = 2;
    static constexpr int tile_columns = 2;

    class Factors {
      public:
        HOST_DEVICE Factors(int16_t first, int16_t second)
            : both_(two_factors(static_cast<uint16_t>(first), static_cast<uint16_t>(second))) {}
        HOST_DEVICE void add(Vector<int16_t> one, Vector<int16_t> other, Lanes (&sum)[2]) const {
            add_two_products(both_, (__m512i)one, (__m512i)other, sum[0], sum[1]);
        }

      private:
        __m512i both_;
    };
    static HOST_DEVICE Lanes multiply_add(Lanes sum, Vector<int16_t> a, Vector<int16_t> b) {
        return add_pairs(sum, (__m512i)a, (__m512i)b);
    }
    static HOST_DEVICE void store_sums(int16_t* to, const Lanes (&sum)[2]) {
        store(to, (Vector<int16_t>)alternate_halves(rounded(sum[0], sum[1])));
    }
};
#endif

// Output positions and memory layout; distances are in vectors.
struct Grid {
    int64_t rows, columns;           // positions of the output
    int64_t in_channels;
    int64_t in_block, in_row, in_column;
    int64_t out_block, out_plane, out_row, out_column;
};

template <class Number>
HOST_DEVICE Vector<Number> at(const Number* base, int64_t vectors) {
    return load(base + vectors * lanes<Number>);
}

// Taps of one output channel: squares of four adjacent taps, and others. The offset of a square is that of its first tap;
// its values are those of the upper two taps, then those of the lower two.
template <class Number>
struct Taps {
    const int32_t *square_offset, *offset;
    const Number *square_value, *value;
    int64_t squares, others;
};

// Sums Rows x Columns positions of one output channel. Step is the distance of the input columns that adjacent positions
// read, or 0 if it is known only at run time. Squares require a distance of 1 in rows and columns.
template <int Rows, int Columns, int Step, class Number>
HOST_DEVICE void sum_places(const Grid& grid, const Number* in, const Taps<Number>& taps, Number* out) {
    using Factors = typename Arithmetic<Number>::Factors;
    const int64_t step = Step ? Step : grid.in_column;
    Lanes sum[Rows][Columns][Arithmetic<Number>::sums] = {};
    if constexpr (Step == 1) {
        // Each row of input is read once, for the lower taps of one row of positions and the upper taps of the next.
        for (int64_t square = 0; square < taps.squares; ++square) {
            const Number* from = in + taps.square_offset[square] * int64_t{lanes<Number>};
            const Number* value = taps.square_value + 4 * square;
            const Factors upper(value[0], value[1]), lower(value[2], value[3]);
            Vector<Number> line[Columns + 1];
            UNROLL
            for (int column = 0; column <= Columns; ++column) line[column] = in_register(at(from, column));
            UNROLL
            for (int row = 0; row < Rows; ++row) {
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    upper.add(line[column], line[column + 1], sum[row][column]);
                UNROLL
                for (int column = 0; column <= Columns; ++column) line[column] = in_register(at(from, (row + 1) * grid.in_row + column));
                UNROLL
                for (int column = 0; column < Columns; ++column)
                    lower.add(line[column], line[column + 1], sum[row][column]);
            }
        }
    }
    const auto add_taps = [&](Factors factors, int64_t offset, const auto& other) {
        UNROLL
        for (int row = 0; row < Rows; ++row) {
            UNROLL
            for (int column = 0; column < Columns; ++column) {
                const int64_t place = row * grid.in_row + column * step;
                factors.add(at(in, offset + place), other(place), sum[row][column]);
            }
        }
    };
    int64_t tap = 0;
    for (; tap + 2 <= taps.others; tap += 2)
        add_taps(Factors(taps.value[tap], taps.value[tap + 1]), taps.offset[tap],
                 [&](int64_t place) { return at(in, taps.offset[tap + 1] + place); });
    if (tap < taps.others)
        add_taps(Factors(taps.value[tap], Number{}), taps.offset[tap], [](int64_t) { return Vector<Number>{}; });
    UNROLL
    for (int row = 0; row < Rows; ++row) {
        UNROLL
        for (int column = 0; column < Columns; ++column)
            Arithmetic<Number>::store_sums(out + (row * grid.out_row + column * grid.out_column) * lanes<Number>, sum[row][column]);
    }
}

// Sums rows of the output, `Rows` at a time and the rest one by one, in pieces of `Columns` columns, then of half as many.
template <int Rows, int Columns, int Step, class Number>
void sum_rows(const Grid& grid, int64_t rows, int64_t first, const Number* in, const Taps<Number>& taps, Number* out) {
    constexpr int width = lanes<Number>;
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

template <class Number>
void sum_taps(const Grid& grid, const Number* in, Number* out, int64_t blocks, int64_t channels, const int64_t* square,
              const int32_t* square_offset, const int64_t* first, const int32_t* offset, const Number* value, int threads) {
    constexpr int width = lanes<Number>, tile_columns = Arithmetic<Number>::tile_columns;
    const int64_t at_once = rows_at_once(grid), tiles = (grid.rows + at_once - 1) / at_once;
    const auto rows_of_step = grid.in_column == 1   ? sum_rows<tile_rows, tile_columns, 1, Number>
                              : grid.in_column == 2 ? sum_rows<tile_rows, tile_columns, 2, Number>
                                                    : sum_rows<tile_rows, tile_columns, 0, Number>;
    const Number* others = value + 4 * square[channels];
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t unit = 0; unit < blocks * tiles; ++unit) {
        const int64_t block = unit / tiles, row = unit % tiles * at_once, rows = std::min(at_once, grid.rows - row);
        const Number* from = in + (block * grid.in_block + row * grid.in_row) * width;
        Number* to = out + (block * grid.out_block + row * grid.out_row) * width;
        for (int64_t channel = 0; channel < channels; ++channel) {
            const Taps<Number> taps{square_offset + square[channel],       offset + first[channel],
                                    value + 4 * square[channel],           others + first[channel],
                                    square[channel + 1] - square[channel], first[channel + 1] - first[channel]};
            rows_of_step(grid, rows, 0, from, taps, to + channel * grid.out_plane * width);
        }
    }
}

// Returns the sums of adjacent lanes of two vectors, those of the first vector in the first half.
HOST_DEVICE Lanes fold(Lanes a, Lanes b) {
    using Sequence = std::make_index_sequence<lanes<float>>;
    return even_lanes(a, b, Sequence{}) + odd_lanes(a, b, Sequence{});
}

// Adds the sum of the lanes of each vector to `sums`.
template <int Count>
HOST_DEVICE void add_totals(const Lanes (&value)[Count], float* sums) {
    static_assert(Count == 1 || Count == 4);
    Lanes folded = Count == 4 ? fold(fold(value[0], value[1 % Count]), fold(value[2 % Count], value[3 % Count])) : value[0];
    for (int lanes_each = lanes<float> / Count; lanes_each > 1; lanes_each /= 2) folded = fold(folded, folded);
    for (int i = 0; i < Count; ++i) sums[i] += folded[i];
}

// Adds the products of some rows to the gradients of the taps of one kernel.
template <int Taps, class Number>
HOST_DEVICE void add_products(const Grid& grid, int64_t rows, const Number* grad, const Number* in, const int32_t* offset,
                              float* sums) {
    constexpr int width = lanes<Number>;
    constexpr auto add = Arithmetic<Number>::multiply_add;
    Lanes sum[Taps] = {}, other[Taps] = {};  // two chains per tap: one alone would wait for each addition
    for (int64_t row = 0; row < rows; ++row) {
        const Number* of_grad = grad + row * grid.out_row * width;
        const Number* of_in = in + row * grid.in_row * width;
        int64_t column = 0;
        for (; column + 2 <= grid.columns; column += 2) {
            const Vector<Number> even = at(of_grad, column * grid.out_column), odd = at(of_grad, (column + 1) * grid.out_column);
            UNROLL
            for (int tap = 0; tap < Taps; ++tap) {
                sum[tap] = add(sum[tap], even, at(of_in, offset[tap] + column * grid.in_column));
                other[tap] = add(other[tap], odd, at(of_in, offset[tap] + (column + 1) * grid.in_column));
            }
        }
        if (column < grid.columns) {
            const Vector<Number> last = at(of_grad, column * grid.out_column);
            UNROLL
            for (int tap = 0; tap < Taps; ++tap)
                sum[tap] = add(sum[tap], last, at(of_in, offset[tap] + column * grid.in_column));
        }
    }
    UNROLL
    for (int tap = 0; tap < Taps; ++tap) sum[tap] += other[tap];
    add_totals<Taps>(sum, sums);
}

// The same for a square of taps and a column distance of 1, for some columns. Each row of input is read once, for the lower
// taps of one row of positions and the upper taps of the next.
template <int Columns, class Number>
HOST_DEVICE void add_square_columns(const Grid& grid, int64_t rows, const Number* grad, const Number* in,
                                    Lanes (&sum)[2][kernel_taps]) {
    constexpr auto add = Arithmetic<Number>::multiply_add;
    Vector<Number> line[Columns + 1];
    UNROLL
    for (int column = 0; column <= Columns; ++column) line[column] = in_register(at(in, column));
    for (int64_t row = 0; row < rows; ++row) {
        Vector<Number> of_grad[Columns];
        UNROLL
        for (int column = 0; column < Columns; ++column)
            of_grad[column] = in_register(at(grad, row * grid.out_row + column * grid.out_column));
        const auto add_taps = [&](int first) {
            UNROLL
            for (int column = 0; column < Columns; ++column) {
                Lanes(&to)[kernel_taps] = sum[column % 2];  // two chains per tap, as above
                to[first] = add(to[first], of_grad[column], line[column]);
                to[first + 1] = add(to[first + 1], of_grad[column], line[column + 1]);
            }
        };
        add_taps(0);
        UNROLL
        for (int column = 0; column <= Columns; ++column)
            line[column] = in_register(at(in, (row + 1) * grid.in_row + column));
        add_taps(2);
    }
}

template <class Number>
HOST_DEVICE void add_square_products(const Grid& grid, int64_t rows, const Number* grad, const Number* in, float* sums) {
    Lanes sum[2][kernel_taps] = {};
    int64_t first = 0;
    const auto add_columns = [&](auto columns) {
        for (; first + columns <= grid.columns; first += columns)
            add_square_columns<columns>(grid, rows, grad + first * grid.out_column * lanes<Number>,
                                        in + first * lanes<Number>, sum);
    };
    add_columns(std::integral_constant<int, 4>{});
    add_columns(std::integral_constant<int, 2>{});
    add_columns(std::integral_constant<int, 1>{});
    UNROLL
    for (int tap = 0; tap < kernel_taps; ++tap) sum[0][tap] += sum[1][tap];
    add_totals<kernel_taps>(sum[0], sums);
}

// Returns whether four taps, sorted by position, form a square.
HOST_DEVICE bool is_square(const Grid& grid, const int32_t* offset) {
    return offset[1] == offset[0] + 1 && offset[2] == offset[0] + grid.in_row && offset[3] == offset[2] + 1;
}

// Each thread sums a fixed set of blocks and rows; the sums of threads are then added in order.
template <class Number>
void sum_products(const Grid& grid, const Number* in, const Number* grad, float* gradients, int64_t blocks, int64_t kernels,
                  int64_t taps_each, const int32_t* plane, const int32_t* offset, int threads) {
    constexpr int width = lanes<Number>;
    const int64_t at_once = rows_at_once(grid), tiles = (grid.rows + at_once - 1) / at_once, units = blocks * tiles;
    const int64_t taps = kernels * taps_each;
    std::vector<float> sums(static_cast<std::size_t>(threads * taps));
#pragma omp parallel for schedule(static, 1) num_threads(threads)
    for (int64_t thread = 0; thread < threads; ++thread) {
        float* own = sums.data() + thread * taps;
        for (int64_t unit = thread * units / threads; unit < (thread + 1) * units / threads; ++unit) {
            const int64_t block = unit / tiles, row = unit % tiles * at_once, rows = std::min(at_once, grid.rows - row);
            const Number* from = in + (block * grid.in_block + row * grid.in_row) * width;
            const Number* of_grad = grad + (block * grid.out_block + row * grid.out_row) * width;
            for (int64_t kernel = 0; kernel < kernels; ++kernel) {
                const Number* of_kernel = of_grad + plane[kernel] * int64_t{width};
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

// Calls with a number of the type that blocks have: bf16 if `pairs`, otherwise fp32.
template <class Call>
void with_number(int pairs, const Call& call) {
#if defined(__AVX512BF16__)
    if (pairs) return call(int16_t{});
#endif
    call(float{});
}

}  // namespace
}  // namespace pdt

// The functions below return 0, or 2 if memory cannot be allocated. Arrays of sizes and distances have the order of the
// fields of the structs. `pairs` says that blocks have bf16 numbers, which `pdt_multiplies_pairs` allows; otherwise fp32.

extern "C" int pdt_vector_bytes() { return pdt::vector_bytes; }

extern "C" int pdt_multiplies_pairs() {
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}

// format: 0 fp32, 1 bf16, 2 fp16. to_blocks: nonzero converts into the blocked activation, 0 out of it.
extern "C" int pdt_blocks(const int64_t* numbers, void* plain, void* blocked, int format, int pairs, int to_blocks,
                          int threads) {
    const pdt::Layout layout{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],  numbers[5],
                             numbers[6], numbers[7], numbers[8], numbers[9], numbers[10], numbers[11]};
    const auto convert = [&](auto of, auto number) {
        using Format = decltype(of);
        auto* elements = static_cast<typename Format::Bits*>(plain);
        auto* in_blocks = static_cast<decltype(number)*>(blocked);
        if (to_blocks)
            pdt::to_blocks<Format>(layout, elements, in_blocks, threads);
        else
            pdt::from_blocks<Format>(layout, in_blocks, elements, threads);
    };
    switch (format) {
        case 0: convert(pdt::Float32{}, float{}); break;
        case 1: pdt::with_number(pairs, [&](auto number) { convert(pdt::BFloat16{}, number); }); break;
        default: convert(pdt::Float16{}, float{}); break;
    }
    return 0;
}

// out[channel] at each position of the grid is the sum of value * in[offset] over the taps of the channel. square and first
// contain the index at which the squares and the other taps of each channel begin; values are those of all squares, then
// those of the others.
extern "C" int pdt_sum_taps(const int64_t* grid, const void* in, void* out, int pairs, int64_t blocks, int64_t channels,
                            const int64_t* square, const int32_t* square_offset, const int64_t* first, const int32_t* offset,
                            const void* value, int threads) {
    pdt::with_number(pairs, [&](auto number) {
        using Number = decltype(number);
        pdt::sum_taps({grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], grid[7], grid[8], grid[9]},
                      static_cast<const Number*>(in), static_cast<Number*>(out), blocks, channels, square, square_offset,
                      first, offset, static_cast<const Number*>(value), threads);
    });
    return 0;
}

// gradients[kernel][tap] is the sum of grad[plane of the kernel] * in[offset of the tap] over images and positions.
extern "C" int pdt_sum_products(const int64_t* grid, const void* in, const void* grad, int pairs, float* gradients,
                                int64_t blocks, int64_t kernels, int64_t taps_each, const int32_t* plane,
                                const int32_t* offset, int threads) {
    try {
        pdt::with_number(pairs, [&](auto number) {
            using Number = decltype(number);
            pdt::sum_products({grid[0], grid[1], grid[2], grid[3], grid[4], grid[5], grid[6], grid[7], grid[8], grid[9]},
                              static_cast<const Number*>(in), static_cast<const Number*>(grad), gradients, blocks, kernels,
                              taps_each, plane, offset, threads);
        });
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}
