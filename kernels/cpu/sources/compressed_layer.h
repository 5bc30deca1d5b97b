// Geometry and blocks of channels, for both gradients of a layer from a compressed output gradient.
//
// A compressed output gradient holds `kept` values of each pixel with their channel numbers, in ascending order. Every
// whole group of m channels has n of them, and a short last group min(n, its size).
//
// The kernels multiply one value at a time by a row of vectors: a block of `wide` vectors of input channels at each
// position of a window of the convolution kernel. The sums of a window stay in registers.
//
// With AVX512_BF16, a row of a bf16 layer holds bf16 numbers, and two values are multiplied at a time, each by its own row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <vector>

#if defined(__linux__)
#include <unistd.h>
#endif

#include "bf16_pairs.h"
#include "float_formats.h"
#include "lanes.h"
#include "threads.h"

namespace pdt {

using Lanes = Vector<float>;
constexpr int width = lanes<float>;

// The order of the fields is that of the numbers that Python passes. Rows, columns and paddings are in pixels.
struct Layer {
    int64_t images, rows, columns, out_rows, out_columns, in_channels, out_channels, groups;
    int64_t kernel_rows, kernel_columns, row_stride, column_stride, row_padding, column_padding, row_dilation,
        column_dilation;
    int64_t n, m, kept;

    int64_t taps() const { return kernel_rows * kernel_columns; }
    int64_t group_inputs() const { return in_channels / groups; }
    int64_t group_outputs() const { return out_channels / groups; }
    int64_t out_pixels() const { return out_rows * out_columns; }

    // Rows of a padded input that `count` rows of the output gradient reach.
    int64_t reached_rows(int64_t count) const {
        return (count - 1) * row_stride + (kernel_rows - 1) * row_dilation + 1;
    }
    int64_t padded_rows() const { return std::max(rows + 2 * row_padding, reached_rows(out_rows)); }
    int64_t padded_columns() const {
        return std::max(columns + 2 * column_padding,
                        (out_columns - 1) * column_stride + (kernel_columns - 1) * column_dilation + 1);
    }

    // Number of values of a pixel in channels below `channel`, which is a multiple of m or the number of channels.
    int64_t values_below(int64_t channel) const { return channel / m * n + std::min(n, channel % m); }
};

// Whether the channel of each value is in the group of its place among the values of a pixel. The kernels use channels as
// indices without further checks. Another channel would make them read and write outside their memory.
inline bool channels_are_in_their_groups(const Layer& layer, const int16_t* channel, int threads) {
    // The lowest channel and the size of the group of each value, for several pixels: long loops are faster.
    const int64_t pixels = layer.images * layer.out_pixels(), stretch = std::max<int64_t>(1, 2048 / layer.kept);
    std::vector<uint16_t> lowest(static_cast<std::size_t>(stretch * layer.kept)), size(lowest.size());
    for (int64_t j = 0; j < stretch * layer.kept; ++j) {
        const int64_t first = j % layer.kept / layer.n * layer.m;
        lowest[static_cast<std::size_t>(j)] = static_cast<uint16_t>(first);
        size[static_cast<std::size_t>(j)] = static_cast<uint16_t>(std::min(layer.m, layer.out_channels - first));
    }
    bool wrong = false;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(|| : wrong)
    for (int64_t pixel = 0; pixel < pixels; pixel += stretch) {
        const int64_t count = std::min(stretch, pixels - pixel) * layer.kept;
        const int16_t* from = channel + pixel * layer.kept;
        uint16_t outside = 0;
#pragma omp simd reduction(| : outside)
        for (int64_t j = 0; j < count; ++j)
            outside |= static_cast<uint16_t>(from[j] - lowest[static_cast<std::size_t>(j)]) >= size[static_cast<std::size_t>(j)];
        wrong = wrong || outside != 0;
    }
    return !wrong;
}

// Positions of the convolution kernel that one call of a loop covers, and vectors of input channels in a block.
struct Window {
    int rows, columns, wide;
};

// Blocks of input channels, and the windows into which the convolution kernel is divided.
struct Blocks {
    Window window;
    int64_t place;   // numbers of a position: the input channels of a block
    int64_t line;    // numbers of a window
    int64_t windows; // of the convolution kernel
    int64_t count;   // blocks of a group of the convolution

    Blocks(const Layer& layer, Window window)
        : window(window),
          place(int64_t{window.wide} * width),
          line(place * window.rows * window.columns),
          windows(layer.taps() / (window.rows * window.columns)),
          count((layer.group_inputs() + place - 1) / place) {}

    int64_t window_taps() const { return int64_t{window.rows} * window.columns; }

    // Distance of a window from the first position of the convolution kernel, in positions of the padded input.
    int64_t shift(const Layer& layer, int64_t index) const {
        const int64_t tap = index * window_taps();
        return tap / layer.kernel_columns * layer.row_dilation * layer.padded_columns() +
               tap % layer.kernel_columns * layer.column_dilation;
    }
};

// The input channels of a block within a group of the convolution.
struct BlockChannels {
    int64_t group, first, count; // `first` is counted within the group

    BlockChannels(const Layer& layer, const Blocks& blocks, int64_t block)
        : group(block / blocks.count),
          first(block % blocks.count * blocks.place),
          count(std::min(blocks.place, layer.group_inputs() - first)) {}
};

// Numbers that are aligned to vectors and have no initial value.
template <class Number>
class Aligned {
  public:
    explicit Aligned(int64_t count)
        : memory_(static_cast<Number*>(::operator new(static_cast<std::size_t>(count) * sizeof(Number), alignment))) {}
    Number* data() { return memory_.get(); }

  private:
    static constexpr std::align_val_t alignment{vector_bytes};
    struct Free {
        void operator()(Number* memory) const { ::operator delete(memory, alignment); }
    };
    std::unique_ptr<Number, Free> memory_;
};

// Returns the number of bytes of the first-level cache that a block may occupy: three quarters of it.
inline int64_t first_level_bytes() {
    long size = 0;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    size = sysconf(_SC_LEVEL1_DCACHE_SIZE);
#endif
    return (size > 0 ? size : 32768) / 4 * 3;
}

// A value and the window of numbers that it is multiplied by.
template <class Number>
struct Factor {
    float value;
    const Number* from;
};

// Adds factors times their windows to sums, one factor at a time for fp32 numbers. The rows of a window are `row` numbers
// apart, and its columns `column` numbers.
template <class Number, int Rows, int Columns, int Wide>
struct Windows;

template <int Rows, int Columns, int Wide>
struct Windows<float, Rows, Columns, Wide> {
    static constexpr int factors = 1;
    int64_t row, column;

    HOST_DEVICE void add(const Factor<float> (&factor)[1], Lanes (&sum)[Rows][Columns][Wide]) const {
        const Lanes value = factor[0].value - Lanes{};
        UNROLL
        for (int r = 0; r < Rows; ++r)
            UNROLL
            for (int c = 0; c < Columns; ++c)
                UNROLL
                for (int i = 0; i < Wide; ++i)
                    sum[r][c][i] += value * load<float>(factor[0].from + r * row + c * column + i * width);
    }
};

// Numbers of the rows that values are multiplied by, with the order in which a row is stored, and conversion of sums.
struct PlainOrder {
    using Number = float;
    static constexpr int vectors = 1;  // of sums, of which a row has a multiple; as many values are multiplied at once

    // Stores `count` elements, and zeros in the other places.
    template <class Format>
    static void store_row(const typename Format::Bits* from, int64_t count, int64_t places, float* to) {
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] = Format::decode(from[c]);
        std::fill(to + count, to + places, 0.0f);
    }
    template <class Format>
    static void write_sums(const float* from, int64_t count, typename Format::Bits* to) {
#pragma omp simd
        for (int64_t c = 0; c < count; ++c) to[c] = Format::encode(from[c]);
    }
};

#if defined(__AVX512BF16__)
// Numbers 0-3, 16-19, 4-7, 20-23, ... of each 32, so that `unpack` of two rows gives 16 neighbours of both.
struct PairOrder {
    using Number = int16_t;
    static constexpr int vectors = 2;

    template <class Format>
    static void store_row(const typename Format::Bits* from, int64_t count, int64_t places, int16_t* to) {
        for (int64_t c = 0; c < places; c += 32) {
            __m512i row;
            if constexpr (sizeof(typename Format::Bits) == 2) {
                row = _mm512_maskz_loadu_epi16(first(count - c), from + c);
            } else {
                const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(first(count - c)), from + c);
                const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(first(count - c - 16)), from + c + 16);
                row = rounded((Lanes)low, (Lanes)high);
            }
            _mm512_store_si512(to + c, alternate_halves(row));
        }
    }
    template <class Format>
    static void write_sums(const float* from, int64_t count, int16_t* to) {
        for (int64_t c = 0; c < count; c += 16)
            _mm256_mask_storeu_epi16(to + c, static_cast<__mmask16>(first(count - c)),
                                     (__m256i)_mm512_cvtneps_pbh(_mm512_load_ps(from + c)));
    }

  private:
    static __mmask32 first(int64_t count) {
        return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(count, 0, 32)) - 1);
    }
};

// Two factors at a time. Values are bf16 numbers; others lose their lower bits.
template <int Rows, int Columns, int Wide>
struct Windows<int16_t, Rows, Columns, Wide> {
    static constexpr int factors = 2;
    int64_t row, column;

    HOST_DEVICE void add(const Factor<int16_t> (&factor)[2], Lanes (&sum)[Rows][Columns][Wide]) const {
        const __m512i values = two_factors(bits_of_float(factor[0].value) >> 16, bits_of_float(factor[1].value) >> 16);
        UNROLL
        for (int r = 0; r < Rows; ++r)
            UNROLL
            for (int c = 0; c < Columns; ++c)
                UNROLL
                for (int i = 0; i < Wide; i += 2) {
                    const int64_t place = r * row + c * column + i * width;
                    const __m512i one = in_register(_mm512_load_si512(factor[0].from + place));
                    const __m512i other = in_register(_mm512_load_si512(factor[1].from + place));
                    add_two_products(values, one, other, sum[r][c][i], sum[r][c][i + 1]);
                }
    }
};

template <class Format>
using OrderOf = std::conditional_t<std::is_same_v<Format, BFloat16>, PairOrder, PlainOrder>;
#else
template <class Format>
using OrderOf = PlainOrder;
#endif

} // namespace pdt
