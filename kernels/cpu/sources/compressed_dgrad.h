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

// Values first .. last - 1 of each pixel of an image. With `Checked`, those whose channel is not in lowest .. end - 1 count
// as 0.
struct ValuesOfImage {
    const float* value;
    const int16_t* channel;
    int64_t first, last, lowest, end;
};

// Adds the products of the values of one image to `image` (padded rows x padded columns x block). `weight` contains the
// window of weights of every output channel. Step is the number of columns that a window leaves when it moves on.
template <class Number, int Rows, int Columns, int Step, int Wide, bool Checked>
void add_products(const Layer& layer, ValuesOfImage values, const Number* weight, float* image) {
    using Products = Windows<Number, Rows, Columns, Wide>;
    constexpr int64_t place = int64_t{Wide} * width, line = Rows * Columns * place;
    const int64_t padded_row = layer.padded_columns() * place, row = layer.row_dilation * padded_row;
    const int64_t column = Step < Columns ? place : layer.column_dilation * place;
    for (int64_t p = 0; p < layer.out_rows; ++p) {
        float* to = image + p * layer.row_stride * padded_row;
        Lanes sum[Rows][Columns][Wide] = {};
        const auto add_columns = [&](int count) __attribute__((always_inline)) {
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
            for (int64_t j = values.first; j < values.last; j += Products::factors) {
                Factor<Number> factor[Products::factors];
                bool skipped = false;
                UNROLL
                for (int f = 0; f < Products::factors; ++f) {
                    const bool missing = f > 0 && j + f >= values.last;
                    const int64_t at = missing ? j : j + f, channel = values.channel[at];
                    const bool outside = Checked && (channel < values.lowest || channel >= values.end);
                    factor[f] = {missing || outside ? 0.0f : values.value[at],
                                 weight + (outside ? values.lowest : channel) * line};
                    skipped = outside;
                }
                if (Products::factors == 1 && skipped) continue;
                Products{Columns * place, place}.add(factor, sum);
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

template <class Number>
struct DataGradientLoop {
    Window window;
    void (*run)(const Layer&, ValuesOfImage, const Number*, float*);
};

template <class Number, int Rows, int Columns, int Wide>
DataGradientLoop<Number> data_gradient_window(const Layer& layer, bool checked) {
    constexpr Window window{Rows, Columns, Wide};
    if (checked) return {window, add_products<Number, Rows, Columns, Columns, Wide, true>};
    if constexpr (Columns > 1)
        if (layer.column_dilation == 1 && layer.column_stride == 1)
            return {window, add_products<Number, Rows, Columns, 1, Wide, false>};
    if constexpr (Columns > 2)
        if (layer.column_dilation == 1 && layer.column_stride == 2)
            return {window, add_products<Number, Rows, Columns, 2, Wide, false>};
    return {window, add_products<Number, Rows, Columns, Columns, Wide, false>};
}

// Returns the window with the most sums that fit into the registers: 32 vectors of 64 bytes, otherwise 16.
template <class Order>
DataGradientLoop<typename Order::Number> data_gradient_loop(const Layer& layer, bool checked) {
    using Number = typename Order::Number;
    constexpr bool many_registers = vector_bytes == 64;
    constexpr int least = Order::vectors;
    const int64_t vectors = (layer.group_inputs() + width - 1) / width;
    const bool even = vectors % 2 == 0;
    if (layer.kernel_rows == 3 && layer.kernel_columns == 3) {
        if constexpr (many_registers)
            if (even) return data_gradient_window<Number, 3, 3, 2>(layer, checked);
        return data_gradient_window<Number, 3, 3, least>(layer, checked);
    }
    if (layer.kernel_columns == 5) {
        if (even) return data_gradient_window<Number, 1, 5, 2>(layer, checked);
        return data_gradient_window<Number, 1, 5, least>(layer, checked);
    }
    if (vectors >= 8) return data_gradient_window<Number, 1, 1, 8>(layer, checked);
    if (vectors >= 4) return data_gradient_window<Number, 1, 1, 4>(layer, checked);
    if (vectors >= 2) return data_gradient_window<Number, 1, 1, 2>(layer, checked);
    return data_gradient_window<Number, 1, 1, least>(layer, checked);
}

// Copies weights (K, R, S, C / groups) to (groups, blocks, windows, K / groups, window, block); channels that a block does
// not have are 0.
template <class Order>
void pack_weights(const Layer& layer, const Blocks& blocks, const int32_t* weight, typename Order::Number* packed,
                  int threads) {
    const int64_t outputs = layer.group_outputs(), inputs = layer.group_inputs(), taps = blocks.window_taps();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t part = 0; part < layer.groups * blocks.count * blocks.windows; ++part) {
        const BlockChannels channels(layer, blocks, part / blocks.windows);
        const int64_t window = part % blocks.windows;
        auto* to = packed + part * outputs * blocks.line;
        for (int64_t k = 0; k < outputs; ++k)
            for (int64_t tap = 0; tap < taps; ++tap, to += blocks.place) {
                const int64_t line = (channels.group * outputs + k) * layer.taps() + window * taps + tap;
                const int32_t* from = weight + line * inputs + channels.first;
                Order::template store_row<Float32>(from, channels.count, blocks.place, to);
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
            OrderOf<Format>::template write_sums<Format>(from, count, to);
        }
}

// value, channel: (N, P, Q, kept); weight: fp32, (K, R, S, C / groups); out: (N, H, W, C).
template <class Format>
void data_gradient(const Layer& layer, const float* value, const int16_t* channel, const int32_t* weight,
                   typename Format::Bits* out, int threads) {
    using Order = OrderOf<Format>;
    using Number = typename Order::Number;
    // A group of pruning may contain channels of two groups of the convolution.
    const bool checked = layer.groups > 1 && layer.group_outputs() % layer.m != 0;
    const DataGradientLoop<Number> loop = data_gradient_loop<Order>(layer, checked);
    const Blocks blocks(layer, loop.window);
    const int64_t outputs = layer.group_outputs(), group_blocks = layer.groups * blocks.count;
    Aligned<Number> packed(group_blocks * blocks.windows * outputs * blocks.line);
    pack_weights<Order>(layer, blocks, weight, packed.data(), threads);

    // Divide the batch into units of images, and the output channels into tiles of whole groups of pruning, which have an
    // even number of values if two are multiplied at a time.
    const int64_t image_size = layer.padded_rows() * layer.padded_columns() * blocks.place;
    const int64_t unit = std::min(layer.images, std::max<int64_t>(1, pixels_of_tile / layer.out_pixels()));
    const int64_t units = (layer.images + unit - 1) / unit;
    const int64_t fitting = first_level_bytes() / (blocks.line * static_cast<int64_t>(sizeof(Number)));
    const int64_t least = layer.n % Order::vectors == 0 ? layer.m : Order::vectors * layer.m;
    const int64_t tile = std::max<int64_t>(1, fitting / least) * least;
    Aligned<float> memory(threads * unit * image_size);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < units * group_blocks; ++task) {
        float* padded = memory.data() + thread_index() * unit * image_size;
        const int64_t block = task % group_blocks, first_image = task / group_blocks * unit;
        const int64_t images = std::min(unit, layer.images - first_image);
        const BlockChannels channels(layer, blocks, block);
        const int64_t lowest = channels.group * outputs, end = lowest + outputs;
        std::fill_n(padded, images * image_size, 0.0f);
        for (int64_t window = 0; window < blocks.windows; ++window) {
            const Number* weights = packed.data() + ((block * blocks.windows + window) * outputs - lowest) * blocks.line;
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
