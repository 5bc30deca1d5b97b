// Activations in blocks of images, and the conversion into blocks and out of them. Numbers in blocks are fp32, or bf16 where
// the processor multiplies these in pairs. A block has as many images as a vector has numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {
namespace {

// Integer of the size of a number in blocks.
template <class Number>
using Bits = std::conditional_t<sizeof(Number) == 2, int16_t, int32_t>;

// Memory layout of a plain and of a blocked activation. Distances are in elements in the plain one, and in vectors in blocks.
struct Layout {
    int64_t images, channels, rows, columns;
    int64_t image, channel, row, column;               // in the plain one
    int64_t top, left, padded_rows, padded_columns;    // in the blocked one
    int64_t plane() const { return padded_rows * padded_columns; }
    int64_t place(int64_t block, int64_t c, int64_t y, int64_t x) const {
        return (block * channels + c) * plane() + (y + top) * padded_columns + x + left;
    }
};

template <class Format, class Number>
HOST_DEVICE Vector<Bits<Number>> load_numbers(const typename Format::Bits* from, int64_t count) {
    if constexpr (sizeof(typename Format::Bits) == sizeof(Number)) {
        return load_first(from, count);
    } else {
        Vector<int32_t> value{};
        for (int64_t e = 0; e < std::min<int64_t>(count, lanes<Number>); ++e)
            value[e] = static_cast<int32_t>(bits_of_float(Format::decode(from[e])));
        return value;
    }
}

template <class Format, class Number>
HOST_DEVICE void store_numbers(typename Format::Bits* to, Vector<Bits<Number>> value, int64_t count) {
    if constexpr (sizeof(typename Format::Bits) == sizeof(Number)) {
        store_first(to, value, count);
    } else {
        for (int64_t e = 0; e < std::min<int64_t>(count, lanes<Number>); ++e)
            to[e] = Format::encode(float_of_bits(static_cast<uint32_t>(value[e])));
    }
}

// Calls visit(plain offset, blocked offset, distance of the elements in blocks, count) for every run of up to `width`
// adjacent elements of the plain activation: channels if these are adjacent, columns otherwise.
template <class Visit>
HOST_DEVICE void for_each_run(const Layout& layout, int64_t width, int64_t block, int64_t row, const Visit& visit) {
    const int64_t first = block * width * layout.image + row * layout.row;
    if (layout.channel == 1) {
        for (int64_t c = 0; c < layout.channels; c += width)
            for (int64_t x = 0; x < layout.columns; ++x)
                visit(first + c + x * layout.column, layout.place(block, c, row, x), layout.plane(),
                      std::min(width, layout.channels - c));
    } else {
        for (int64_t c = 0; c < layout.channels; ++c)
            for (int64_t x = 0; x < layout.columns; x += width)
                visit(first + c * layout.channel + x, layout.place(block, c, row, x), 1,
                      std::min(width, layout.columns - x));
    }
}

// Converts into blocks. The border, and missing images of the last block, become zero.
template <class Format, class Number>
void to_blocks(const Layout& layout, const typename Format::Bits* plain, Number* blocked, int threads) {
    constexpr int width = lanes<Number>;
    const int64_t blocks = (layout.images + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) collapse(2)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t y = 0; y < layout.padded_rows; ++y) {
            const int64_t row = y - layout.top;
            const bool border = row < 0 || row >= layout.rows;
            for (int64_t c = 0; c < layout.channels; ++c) {
                Number* line = blocked + ((block * layout.channels + c) * layout.plane() + y * layout.padded_columns) * width;
                const int64_t right = layout.left + layout.columns;
                std::fill(line, line + (border ? layout.padded_columns : layout.left) * width, Number{});
                if (!border) std::fill(line + right * width, line + layout.padded_columns * width, Number{});
            }
            if (border) continue;
            const int64_t images = std::min<int64_t>(width, layout.images - block * width);
            for_each_run(layout, width, block, row, [&](int64_t element, int64_t place, int64_t distance, int64_t count) {
                Vector<Bits<Number>> tile[width];
                UNROLL
                for (int image = 0; image < width; ++image)
                    tile[image] = image < images ? load_numbers<Format, Number>(plain + element + image * layout.image, count)
                                                 : Vector<Bits<Number>>{};
                deinterleave<Bits<Number>, width>(tile);
                UNROLL
                for (int e = 0; e < width; ++e) {
                    const int neighbour = reversed_bits(e, width);
                    if (neighbour < count) store(blocked + (place + neighbour * distance) * width, (Vector<Number>)tile[e]);
                }
            });
        }
    }
}

// Converts out of blocks.
template <class Format, class Number>
void from_blocks(const Layout& layout, const Number* blocked, typename Format::Bits* plain, int threads) {
    constexpr int width = lanes<Number>;
    const int64_t blocks = (layout.images + width - 1) / width;
#pragma omp parallel for schedule(static) num_threads(threads) collapse(2)
    for (int64_t block = 0; block < blocks; ++block) {
        for (int64_t row = 0; row < layout.rows; ++row) {
            const int64_t images = std::min<int64_t>(width, layout.images - block * width);
            for_each_run(layout, width, block, row, [&](int64_t element, int64_t place, int64_t distance, int64_t count) {
                Vector<Bits<Number>> tile[width];
                UNROLL
                for (int e = 0; e < width; ++e)
                    tile[e] = e < count ? (Vector<Bits<Number>>)load(blocked + (place + e * distance) * width)
                                        : Vector<Bits<Number>>{};
                deinterleave<Bits<Number>, width>(tile);
                UNROLL
                for (int i = 0; i < width; ++i) {
                    const int image = reversed_bits(i, width);
                    if (image < images) store_numbers<Format, Number>(plain + element + image * layout.image, tile[i], count);
                }
            });
        }
    }
}

}  // namespace
}  // namespace pdt
