// Activations in blocks of images, and the way there and back.
//
// A blocked activation is [blocks][C][H'][W'][32 words]: the lanes of a warp hold one place of one channel for as many
// images as there is room for, one fp32 number or two 16-bit ones in each lane's word. H' and W' have a border of zeros
// where an offset may lead out of the image. So a weight and an offset are the same for a whole warp, which reads 128
// bytes in a row whatever the offset.
#pragma once

#include "device.cuh"
#include "float_formats.h"

namespace pdt {

constexpr int lanes = 32;

// One lane's word of a blocked activation.
template <class Format>
struct Word {
    using Bits = typename Format::Bits;
    static constexpr int images = 4 / sizeof(Bits);
    static constexpr int of_block = lanes * images;

    static HOST_DEVICE float decode(uint32_t word, int image) {
        if constexpr (images == 1) return Format::decode(static_cast<Bits>(word));
        return Format::decode(static_cast<Bits>(static_cast<uint16_t>(word >> (16 * image))));
    }
    static HOST_DEVICE uint32_t encode(const float (&value)[images]) {
        if constexpr (images == 1) return static_cast<uint32_t>(Format::encode(value[0]));
        const uint32_t low = static_cast<uint16_t>(Format::encode(value[0]));
        return low | static_cast<uint32_t>(static_cast<uint16_t>(Format::encode(value[images - 1]))) << 16;
    }
};

// A plain activation, dense in memory, channels-last or contiguous, and its place within a border.
struct Image {
    int channels, rows, columns, top, left, padded_rows, padded_columns;
};

// One element of an image, of which there are `count` in the order of the plain activation's memory: the places within the
// border where PADDED, else those of the image alone.
template <bool LAST, bool PADDED>
struct Element {
    int blocked;    // in vectors
    int64_t plain;  // in elements; of the border, -1

    static HOST_DEVICE int count(const Image& image) {
        return image.channels * (PADDED ? image.padded_rows * image.padded_columns : image.rows * image.columns);
    }
    HOST_DEVICE Element(const Image& image, int number) {
        const int rows = PADDED ? image.padded_rows : image.rows, columns = PADDED ? image.padded_columns : image.columns;
        const int channel = LAST ? number % image.channels : number / (rows * columns);
        const int place = LAST ? number / image.channels : number % (rows * columns);
        const int y = place / columns - (PADDED ? image.top : 0), x = place % columns - (PADDED ? image.left : 0);
        blocked = (channel * image.padded_rows + y + image.top) * image.padded_columns + x + image.left;
        const bool inside = y >= 0 && y < image.rows && x >= 0 && x < image.columns;
        const int64_t distance = LAST ? int64_t{y * image.columns + x} * image.channels + channel
                                      : int64_t{channel * image.rows + y} * image.columns + x;
        plain = inside ? distance : -1;
    }
};

// 32 elements x the images of a block, turned in shared memory, so that both sides are read or written in a row: a warp
// has neighbouring elements of one image on the plain side, and all images of one element on the blocked one. A row of
// the tile is 33 words: then neither side's lanes meet in a bank.
constexpr int tile_row = lanes + 1;
constexpr int turning_warps = 8;  // of a block; known, so that a thread's loads are all on their way at once

// The border, and images that fill up the last block, become zero.
template <class Format, bool LAST>
__global__ void __launch_bounds__(256)
    to_blocks(const typename Format::Bits* plain, uint32_t* blocked, int images, int channels, int rows, int columns,
              int top, int left, int padded_rows, int padded_columns) {
    using W = Word<Format>;
    DYNAMIC_SHARED(memory);
    uint32_t* words = reinterpret_cast<uint32_t*>(memory);
    typename Format::Bits* tile = reinterpret_cast<typename Format::Bits*>(memory);
    const Image image{channels, rows, columns, top, left, padded_rows, padded_columns};
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int elements = Element<LAST, true>::count(image), tiles = (elements + lanes - 1) / lanes;
    const int first = static_cast<int>(blockIdx.x % tiles) * lanes;
    const int64_t block = blockIdx.x / tiles;

    const Element<LAST, true> mine(image, first + lane);
    const bool there = first + lane < elements && mine.plain >= 0;
    constexpr int each = W::of_block / turning_warps;
    typename Format::Bits bits[each];
    UNROLL
    for (int i = 0; i < each; ++i) {
        const int64_t number = block * W::of_block + warp + i * turning_warps;
        bits[i] = there && number < images ? plain[number * channels * rows * columns + mine.plain] : 0;
    }
    UNROLL
    for (int i = 0; i < each; ++i) tile[lane * tile_row * W::images + warp + i * turning_warps] = bits[i];
    __syncthreads();
    const int64_t of_block = int64_t{channels} * padded_rows * padded_columns;
    for (int e = warp; e < lanes && first + e < elements; e += turning_warps) {
        const Element<LAST, true> other(image, first + e);
        blocked[(block * of_block + other.blocked) * lanes + lane] = words[e * tile_row + lane];
    }
}

template <class Format, bool LAST>
__global__ void __launch_bounds__(256)
    from_blocks(const uint32_t* blocked, typename Format::Bits* plain, int images, int channels, int rows, int columns,
                int top, int left, int padded_rows, int padded_columns) {
    using W = Word<Format>;
    DYNAMIC_SHARED(memory);
    uint32_t* words = reinterpret_cast<uint32_t*>(memory);
    const typename Format::Bits* tile = reinterpret_cast<const typename Format::Bits*>(memory);
    const Image image{channels, rows, columns, top, left, padded_rows, padded_columns};
    const int lane = threadIdx.x, warp = threadIdx.y;
    const int elements = Element<LAST, false>::count(image), tiles = (elements + lanes - 1) / lanes;
    const int first = static_cast<int>(blockIdx.x % tiles) * lanes;
    const int64_t block = blockIdx.x / tiles;

    const int64_t of_block = int64_t{channels} * padded_rows * padded_columns;
    constexpr int each = lanes / turning_warps;
    uint32_t word[each];
    UNROLL
    for (int i = 0; i < each; ++i) {
        const int e = warp + i * turning_warps;
        const Element<LAST, false> other(image, first + e);
        word[i] = first + e < elements ? blocked[(block * of_block + other.blocked) * lanes + lane] : 0;
    }
    UNROLL
    for (int i = 0; i < each; ++i) words[(warp + i * turning_warps) * tile_row + lane] = word[i];
    __syncthreads();
    if (first + lane >= elements) return;
    const Element<LAST, false> mine(image, first + lane);
    for (int i = warp; i < W::of_block; i += turning_warps) {
        const int64_t number = block * W::of_block + i;
        if (number < images)
            plain[number * channels * rows * columns + mine.plain] = tile[lane * tile_row * W::images + i];
    }
}

}  // namespace pdt
