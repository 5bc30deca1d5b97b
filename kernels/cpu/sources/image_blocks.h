// Activations in blocks of images, and the conversion into blocks and out of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {
namespace {

constexpr int width = lanes<float>;  // images per block

// Memory layout of a plain and of a blocked activation. Distances in the plain one are in elements.
struct Layout {
    int64_t images, channels, rows, columns;
    int64_t image, channel, row, column;               // in the plain one
    int64_t top, left, padded_rows, padded_columns;    // in the blocked one
    int64_t plane() const { return padded_rows * padded_columns; }
    int64_t place(int64_t block, int64_t c, int64_t y, int64_t x) const {
        return ((block * channels + c) * plane() + (y + top) * padded_columns + x + left) * width;
    }
};

// Transposes a tile of images x adjacent elements into elements x images.
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

// Calls visit(plain offset, blocked offset, distance of the elements in blocks, count) for every run of up to `width`
// adjacent elements of the plain activation: channels if these are adjacent, columns otherwise.
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

// Converts into blocks. The border, and missing images of the last block, become zero.
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

// Converts out of blocks.
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
