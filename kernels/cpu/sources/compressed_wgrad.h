// The weight gradient of a layer from a compressed output gradient.
//
// The values are sorted by channel within units of pixels. For each unit and block of input channels, the part of the
// activation that the unit reads is copied to the first-level cache; then the gradient of each output channel is summed in
// registers over the pixels that keep this channel.
//
// The sums do not depend on the number of threads. If few blocks would leave threads idle, the batch is divided into
// parts, whose sums are added in order. The number of parts depends on the layer alone.
#pragma once

#include <cstring>
#include <vector>

#include "compressed_layer.h"

namespace pdt {

constexpr int64_t fewest_tasks = 8, fewest_pixels = 32;

// Division of the output gradient: whole images, or rows of one image.
struct Units {
    int64_t images, rows, of_image, count; // images and rows of a unit; units of an image (if not whole), and in total
    int64_t tile_rows, tile_places;        // rows and positions of the activation that one image of a unit reads

    Units(const Layer& layer, const Blocks& blocks, int64_t number_bytes) {
        // Pixels whose tile of the activation fits into the first-level cache.
        const int64_t bytes = blocks.place * number_bytes * layer.row_stride * layer.column_stride;
        const int64_t pixels = std::max(fewest_pixels, first_level_bytes() * 2 / 3 / bytes);
        images = std::min(layer.images, std::max<int64_t>(1, pixels / layer.out_pixels()));
        rows = layer.out_rows;
        if (images == 1) rows = std::min(layer.out_rows, std::max<int64_t>(1, pixels / layer.out_columns));
        of_image = (layer.out_rows + rows - 1) / rows;
        count = (layer.images + images - 1) / images * of_image;
        tile_rows = layer.reached_rows(rows);
        tile_places = tile_rows * layer.padded_columns();
    }
};

// The images and rows of one unit, and its first pixel in the batch.
struct Unit {
    int64_t first_image, images, first_row, rows, pixel;

    Unit(const Layer& layer, const Units& units, int64_t index)
        : first_image(index / units.of_image * units.images),
          images(std::min(units.images, layer.images - first_image)),
          first_row(index % units.of_image * units.rows),
          rows(std::min(units.rows, layer.out_rows - first_row)),
          pixel(first_image * layer.out_pixels() + first_row * layer.out_columns) {}
};

// A value, and the position in the tile of the activation that its pixel begins to read.
struct Entry {
    float value;
    int32_t place;
};

// The values of all units, each sorted by channel; `start` has K + 1 indices for each unit, relative to the unit.
struct SortedValues {
    std::unique_ptr<Entry[]> entry; // has no initial values
    std::vector<int32_t> start, next;

    SortedValues(const Layer& layer, const Units& units)
        : entry(new Entry[static_cast<std::size_t>(layer.images * layer.out_pixels() * layer.kept)]),
          start(static_cast<std::size_t>(units.count * (layer.out_channels + 1))),
          next(start.size()) {}
};

inline void sort_by_channel(const Layer& layer, const Units& units, const float* value, const int16_t* channel,
                            SortedValues& sorted, int threads) {
    const int64_t channels = layer.out_channels, padded_columns = layer.padded_columns();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t index = 0; index < units.count; ++index) {
        const Unit unit(layer, units, index);
        const int64_t begin = unit.pixel * layer.kept;
        const int64_t count = unit.images * unit.rows * layer.out_columns * layer.kept;
        int32_t* start = sorted.start.data() + index * (channels + 1);
        int32_t* next = sorted.next.data() + index * (channels + 1);
        for (int64_t e = begin; e < begin + count; ++e) ++start[channel[e] + 1];
        for (int64_t k = 0; k < channels; ++k) start[k + 1] += start[k];
        std::copy_n(start, channels, next);
        int64_t e = begin;
        for (int64_t i = 0; i < unit.images; ++i)
            for (int64_t p = 0; p < unit.rows; ++p)
                for (int64_t q = 0; q < layer.out_columns; ++q) {
                    const int64_t place =
                        i * units.tile_places + p * layer.row_stride * padded_columns + q * layer.column_stride;
                    for (int64_t j = 0; j < layer.kept; ++j, ++e)
                        sorted.entry[begin + next[channel[e]]++] = {value[e], static_cast<int32_t>(place)};
                }
    }
}

// Adds the products of `count` values of one channel to its window of the gradient.
template <class Number, int Rows, int Columns, int Wide>
void add_entries(const Layer& layer, const Number* tile, const Entry* entry, int64_t count, float* gradient) {
    using Products = Windows<Number, Rows, Columns, Wide>;
    constexpr int64_t place = int64_t{Wide} * width;
    const int64_t row = layer.row_dilation * layer.padded_columns() * place, column = layer.column_dilation * place;
    Lanes sum[Rows][Columns][Wide];
    UNROLL
    for (int r = 0; r < Rows; ++r)
        UNROLL
        for (int c = 0; c < Columns; ++c)
            UNROLL
            for (int i = 0; i < Wide; ++i) sum[r][c][i] = load<float>(gradient + (r * Columns + c) * place + i * width);
    for (int64_t e = 0; e < count; e += Products::factors) {
        Factor<Number> factor[Products::factors];
        UNROLL
        for (int f = 0; f < Products::factors; ++f) {
            const bool missing = f > 0 && e + f >= count;
            const Entry& from = entry[missing ? e : e + f];
            factor[f] = {missing ? 0.0f : from.value, tile + from.place * place};
        }
        Products{row, column}.add(factor, sum);
    }
    UNROLL
    for (int r = 0; r < Rows; ++r)
        UNROLL
        for (int c = 0; c < Columns; ++c)
            UNROLL
            for (int i = 0; i < Wide; ++i) store<float>(gradient + (r * Columns + c) * place + i * width, sum[r][c][i]);
}

template <class Number>
struct WeightGradientLoop {
    Window window;
    void (*run)(const Layer&, const Number*, const Entry*, int64_t, float*);
};

template <class Number, int Rows, int Columns, int Wide>
constexpr WeightGradientLoop<Number> weight_gradient_window() {
    return {{Rows, Columns, Wide}, add_entries<Number, Rows, Columns, Wide>};
}

template <class Order>
WeightGradientLoop<typename Order::Number> weight_gradient_loop(const Layer& layer) {
    using Number = typename Order::Number;
    constexpr int least = Order::vectors;
    const int64_t vectors = (layer.group_inputs() + width - 1) / width;
    if (layer.kernel_rows == 3 && layer.kernel_columns == 3) return weight_gradient_window<Number, 3, 3, least>();
    if (layer.kernel_columns == 5) return weight_gradient_window<Number, 1, 5, least>();
    if (vectors >= 8) return weight_gradient_window<Number, 1, 1, 8>();
    if (vectors >= 4) return weight_gradient_window<Number, 1, 1, 4>();
    if (vectors >= 2) return weight_gradient_window<Number, 1, 1, 2>();
    return weight_gradient_window<Number, 1, 1, least>();
}

// Copies the part of one image that a unit reads to `tile` (rows x padded columns x block), with zeros as its border and in
// channels that the block does not have. `image` begins at the first channel of the block.
template <class Format>
void read_tile(const Layer& layer, const Units& units, const Blocks& blocks, int64_t first_row, int64_t count,
               const typename Format::Bits* image, typename OrderOf<Format>::Number* tile) {
    const int64_t columns = std::min(layer.columns, layer.padded_columns() - layer.column_padding);
    std::fill_n(tile, units.tile_places * blocks.place, typename OrderOf<Format>::Number{});
    for (int64_t r = 0; r < units.tile_rows; ++r) {
        const int64_t h = first_row * layer.row_stride - layer.row_padding + r;
        if (h < 0 || h >= layer.rows) continue;
        auto* to = tile + (r * layer.padded_columns() + layer.column_padding) * blocks.place;
        const typename Format::Bits* from = image + h * layer.columns * layer.in_channels;
        for (int64_t w = 0; w < columns; ++w, to += blocks.place, from += layer.in_channels)
            OrderOf<Format>::template store_row<Format>(from, count, blocks.place, to);
    }
}

// Adds the sums (parts, groups, blocks, windows, K / groups, window, block) of all parts, into (K, R, S, C / groups).
inline void add_parts(const Layer& layer, const Blocks& blocks, int64_t parts, const float* sums, float* out, int threads) {
    const int64_t outputs = layer.group_outputs(), inputs = layer.group_inputs(), taps = blocks.window_taps();
    const int64_t lines = layer.groups * blocks.count * blocks.windows * outputs;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t index = 0; index < lines; ++index) {
        const int64_t k = index % outputs, window = index / outputs % blocks.windows;
        const BlockChannels channels(layer, blocks, index / outputs / blocks.windows);
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t line = (channels.group * outputs + k) * layer.taps() + window * taps + tap;
            for (int64_t c = 0; c < channels.count; ++c) {
                float sum = 0.0f;
                for (int64_t part = 0; part < parts; ++part)
                    sum += sums[(part * lines + index) * blocks.line + tap * blocks.place + c];
                out[line * inputs + channels.first + c] = sum;
            }
        }
    }
}

// value, channel: (N, P, Q, kept); activation: (N, H, W, C); out: (K, R, S, C / groups).
template <class Format>
void weight_gradient(const Layer& layer, const float* value, const int16_t* channel,
                     const typename Format::Bits* activation, float* out, int threads) {
    using Number = typename OrderOf<Format>::Number;
    const WeightGradientLoop<Number> loop = weight_gradient_loop<OrderOf<Format>>(layer);
    const Blocks blocks(layer, loop.window);
    const Units units(layer, blocks, sizeof(Number));
    const int64_t outputs = layer.group_outputs(), group_blocks = layer.groups * blocks.count;
    SortedValues sorted(layer, units);
    sort_by_channel(layer, units, value, channel, sorted, threads);

    const int64_t parts = std::min(units.count, (fewest_tasks + group_blocks - 1) / group_blocks);
    const int64_t task_size = blocks.windows * outputs * blocks.line, image_size = units.tile_places * blocks.place;
    Aligned<float> sums(parts * group_blocks * task_size);
    Aligned<Number> memory(threads * units.images * image_size);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t task = 0; task < parts * group_blocks; ++task) {
        Number* tile = memory.data() + thread_index() * units.images * image_size;
        const int64_t part = task / group_blocks;
        const BlockChannels channels(layer, blocks, task % group_blocks);
        std::fill_n(sums.data() + task * task_size, task_size, 0.0f);
        const int64_t first_channel = channels.group * layer.group_inputs() + channels.first;
        for (int64_t index = part * units.count / parts; index < (part + 1) * units.count / parts; ++index) {
            const Unit unit(layer, units, index);
            for (int64_t i = 0; i < unit.images; ++i)
                read_tile<Format>(layer, units, blocks, unit.first_row, channels.count,
                                  activation + (unit.first_image + i) * layer.rows * layer.columns * layer.in_channels +
                                      first_channel,
                                  tile + i * image_size);
            const Entry* entry = sorted.entry.get() + unit.pixel * layer.kept;
            const int32_t* start = sorted.start.data() + index * (layer.out_channels + 1) + channels.group * outputs;
            for (int64_t window = 0; window < blocks.windows; ++window) {
                const Number* shifted = tile + blocks.shift(layer, window) * blocks.place;
                float* gradient = sums.data() + task * task_size + window * outputs * blocks.line;
                for (int64_t k = 0; k < outputs; ++k, gradient += blocks.line)
                    loop.run(layer, shifted, entry + start[k], start[k + 1] - start[k], gradient);
            }
        }
    }
    add_parts(layer, blocks, parts, sums.data(), out, threads);
}

} // namespace pdt
