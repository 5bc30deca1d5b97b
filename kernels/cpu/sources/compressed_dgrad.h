// The data gradient of a layer from a compressed output gradient.
//
// Each value is multiplied by the weights of its channel and added to the positions of the input that its pixel reads.
// A task computes one block of input channels of several images. A tile of weights (the output channels whose values
// are multiplied before the next tile) stays in the first-level cache, and the sums of a window move along a row of
// pixels in registers: when the window advances by a stride, the columns that it leaves are added to memory.
#pragma once

#include <cstring>

#include "compressed_layer.h"

namespace pdt {

constexpr int64_t pixels_of_tile = 1024; // of the output gradient, which are multiplied by a tile of weights

// Values first .. last - 1 of each pixel of an image. `checked` skips values whose channel is not in lowest .. end - 1.
struct ValuesOfImage {
    const float* value;
    const int16_t* channel;
    int64_t first, last, lowest, end;
};

// Adds the products of the values of one image to `image` (padded rows x padded columns x block). `weight` contains the
// window of weights of every output channel. Step is the number of columns that a window leaves when it moves on.
template <int Rows, int Columns, int Step, int Wide, bool Checked>
void add_products(const Layer& layer, ValuesOfImage values, const float* weight, float* image) {
    constexpr int64_t place = int64_t{Wide} * width, line = Rows * Columns * place;
    const int64_t padded_row = layer.padded_columns() * place, row = layer.row_dilation * padded_row;
    const int64_t column = Step < Columns ? place : layer.column_dilation * place;
    for (int64_t p = 0; p < layer.out_rows; ++p) {
        float* to = image + p * layer.row_stride * padded_row;
        Lanes sum[Rows][Columns][Wide] = {};
        const auto add_columns = [&](int count) {
            UNROLL
            for (int r = 0; r < Rows; ++r)
                UNROLL
                for (int c = 0; c < count; ++c)
                    UNROLL
                    for (int i = 0; i < Wide; ++i) {
                        float* at = to + r * row + c * column + i * width;
                        store<float>(at, load<float>(at) + sum[r][c][i]);
                    }
        };
        for (int64_t q = 0; q < layer.out_columns; ++q) {
            for (int64_t j = values.first; j < values.last; ++j) {
                const int64_t channel = values.channel[j];
                if (Checked && (channel < values.lowest || channel >= values.end)) continue;
                add_window<Rows, Columns, Wide>(values.value[j], weight + channel * line, Columns * place, place, sum);
            }
            add_columns(Step);
            UNROLL
            for (int r = 0; r < Rows; ++r)
                UNROLL
                for (int c = 0; c < Columns; ++c)
                    UNROLL
                    for (int i = 0; i < Wide; ++i)
                        sum[r][c][i] = c + Step < Columns ? sum[r][(c + Step) % Columns][i] : Lanes{};
            values.value += layer.kept;
            values.channel += layer.kept;
            to += layer.column_stride * place;
        }
        if constexpr (Step < Columns) add_columns(Columns - Step);
    }
}

using AddProducts = void (*)(const Layer&, ValuesOfImage, const float*, float*);

template <int Rows, int Columns, int Wide>
AddProducts products_of_window(const Layer& layer, bool checked) {
    if (checked) return add_products<Rows, Columns, Columns, Wide, true>;
    if constexpr (Columns > 1)
        if (layer.column_dilation == 1 && layer.column_stride == 1) return add_products<Rows, Columns, 1, Wide, false>;
    if constexpr (Columns > 2)
        if (layer.column_dilation == 1 && layer.column_stride == 2) return add_products<Rows, Columns, 2, Wide, false>;
    return add_products<Rows, Columns, Columns, Wide, false>;
}

struct DataGradientLoop {
    Window window;
    AddProducts run;
};

template <int Rows, int Columns, int Wide>
DataGradientLoop data_gradient_window(const Layer& layer, bool checked) {
    return {{Rows, Columns, Wide}, products_of_window<Rows, Columns, Wide>(layer, checked)};
}

// Returns the window with the most sums that fit into the registers: 32 vectors of 64 bytes, otherwise 16.
inline DataGradientLoop data_gradient_loop(const Layer& layer, bool checked) {
    constexpr bool many_registers = vector_bytes == 64;
    const int64_t vectors = (layer.group_inputs() + width - 1) / width;
    if (layer.kernel_rows == 3 && layer.kernel_columns == 3) {
        if constexpr (many_registers)
            if (vectors % 2 == 0) return data_gradient_window<3, 3, 2>(layer, checked);
        return data_gradient_window<3, 3, 1>(layer, checked);
    }
    if (layer.kernel_columns == 5) {
        if (vectors % 2 == 0) return data_gradient_window<1, 5, 2>(layer, checked);
        return data_gradient_window<1, 5, 1>(layer, checked);
    }
    if (vectors >= 8) return data_gradient_window<1, 1, 8>(layer, checked);
    if (vectors >= 4) return data_gradient_window<1, 1, 4>(layer, checked);
    if (vectors >= 2) return data_gradient_window<1, 1, 2>(layer, checked);
    return data_gradient_window<1, 1, 1>(layer, checked);
}

// Copies weights (K, R, S, C / groups) to (groups, blocks, windows, K / groups, window, block); channels that a block does
// not have are 0.
inline void pack_weights(const Layer& layer, const Blocks& blocks, const float* weight, float* packed, int threads) {
    const int64_t outputs = layer.group_outputs(), inputs = layer.group_inputs(), taps = blocks.window_taps();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t part = 0; part < layer.groups * blocks.count * blocks.windows; ++part) {
        const BlockChannels channels(layer, blocks, part / blocks.windows);
        const int64_t window = part % blocks.windows;
        float* to = packed + part * outputs * blocks.line;
        for (int64_t k = 0; k < outputs; ++k)
            for (int64_t tap = 0; tap < taps; ++tap, to += blocks.place) {
                const int64_t line = (channels.group * outputs + k) * layer.taps() + window * taps + tap;
                std::copy_n(weight + line * inputs + channels.first, channels.count, to);
                std::fill(to + channels.count, to + blocks.place, 0.0f);
            }
    }
}

// Copies the interior of a padded image of one block to `count` channels of the data gradient.
template <class Format>
void write_image(const Layer& layer, const Blocks& blocks, const float* image, int64_t count,
                 typename Format::Bits* to) {
    const float* interior = image + (layer.row_padding * layer.padded_columns() + layer.column_padding) * blocks.place;
    for (int64_t h = 0; h < layer.rows; ++h)
        for (int64_t w = 0; w < layer.columns; ++w, to += layer.in_channels) {
            const float* from = interior + (h * layer.padded_columns() + w) * blocks.place;
            for (int64_t c = 0; c < count; ++c) to[c] = Format::encode(from[c]);
        }
}

// value, channel: (N, P, Q, kept); weight: (K, R, S, C / groups); out: (N, H, W, C).
template <class Format>
void data_gradient(const Layer& layer, const float* value, const int16_t* channel, const float* weight,
                   typename Format::Bits* out, int threads) {
    // A group of pruning may contain channels of two groups of the convolution.
    const bool checked = layer.groups > 1 && layer.group_outputs() % layer.m != 0;
    const DataGradientLoop loop = data_gradient_loop(layer, checked);
    const Blocks blocks(layer, loop.window);
    const int64_t outputs = layer.group_outputs(), group_blocks = layer.groups * blocks.count;
    AlignedFloats packed(group_blocks * blocks.windows * outputs * blocks.line);
    pack_weights(layer, blocks, weight, packed.data(), threads);

    // Divide the batch into units of images, and the output channels into tiles of whole groups of pruning.
    const int64_t image_size = layer.padded_rows() * layer.padded_columns() * blocks.place;
    const int64_t unit = std::min(layer.images, std::max<int64_t>(1, pixels_of_tile / layer.out_pixels()));
    const int64_t units = (layer.images + unit - 1) / unit;
    const int64_t fitting = first_level_bytes() / (blocks.line * static_cast<int64_t>(sizeof(float)));
    const int64_t tile = std::max<int64_t>(1, fitting / layer.m) * layer.m;
    AlignedFloats memory(threads * unit * image_size);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < units * group_blocks; ++task) {
        float* padded = memory.data() + thread_index() * unit * image_size;
        const int64_t block = task % group_blocks, first_image = task / group_blocks * unit;
        const int64_t images = std::min(unit, layer.images - first_image);
        const BlockChannels channels(layer, blocks, block);
        const int64_t lowest = channels.group * outputs, end = lowest + outputs;
        std::fill_n(padded, images * image_size, 0.0f);
        for (int64_t window = 0; window < blocks.windows; ++window) {
            const float* weights = packed.data() + ((block * blocks.windows + window) * outputs - lowest) * blocks.line;
            float* shifted = padded + blocks.shift(layer, window) * blocks.place;
            for (int64_t k = lowest / layer.m * layer.m; k < end; k += tile) {
                const int64_t first = layer.values_below(k);
                const int64_t whole = std::min(k + tile, (end + layer.m - 1) / layer.m * layer.m);
                const int64_t last = layer.values_below(std::min(whole, layer.out_channels));
                for (int64_t i = 0; i < images; ++i) {
                    const int64_t start = (first_image + i) * layer.out_pixels() * layer.kept;
                    loop.run(layer, {value + start, channel + start, first, last, lowest, end}, weights,
                             shifted + i * image_size);
                }
            }
        }
        for (int64_t i = 0; i < images; ++i)
            write_image<Format>(layer, blocks, padded + i * image_size, channels.count,
                                out + (first_image + i) * layer.rows * layer.columns * layer.in_channels +
                                    channels.group * layer.group_inputs() + channels.first);
    }
}

} // namespace pdt
