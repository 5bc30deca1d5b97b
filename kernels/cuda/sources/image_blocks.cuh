// Activations in blocks of images, and the conversion into blocks and out of them.
//
// A blocked activation is [blocks][C][H'][W'][32 words]: the lanes of a warp hold one position of one channel for several
// images, one fp32 number or two 16-bit numbers per lane. H' and W' include a border of zeros where an offset may lead out
// of the image. A weight and an offset are the same for a whole warp, which reads 128 consecutive bytes for every offset.
#pragma once

#include "device.cuh"
#include "float_formats.h"

namespace pdt {

constexpr int lanes = 32;

// Word of a lane of a blocked activation.
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

// Size of a plain activation, which is dense in channels-last or contiguous order, and its border.
struct Image {
    int channels, rows, columns, top, left, padded_rows, padded_columns;
};

// One of the `count` elements of an image, in the memory order of the plain activation: all positions including the border
// if PADDED, otherwise those of the image.
template <bool LAST, bool PADDED>
struct Element {
    int blocked;    // in vectors
    int64_t plain;  // in elements; -1 in the border

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

// A tile of 32 elements x the images of a block is transposed in shared memory, so that accesses to both activations are
// coalesced: a warp accesses adjacent elements of one image in the plain activation, and all images of one element in the
// blocked one. A row of the tile has 33 words to avoid bank conflicts.
constexpr int tile_row = lanes + 1;
constexpr int turning_warps = 8;  // per block; a constant, so that all loads of a thread are in flight at once

// Converts into blocks. The border, and missing images of the last block, become zero.
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

    const Element<LAST, true> own(image, first + lane);
    const bool inside = first + lane < elements && own.plain >= 0;
    constexpr int each = W::of_block / turning_warps;
    typename Format::Bits bits[each];
    UNROLL
    for (int i = 0; i < each; ++i) {
        const int64_t number = block * W::of_block + warp + i * turning_warps;
        bits[i] = inside && number < images ? plain[number * channels * rows * columns + own.plain] : 0;
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

// Converts out of blocks.
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
    const Element<LAST, false> own(image, first + lane);
    for (int i = warp; i < W::of_block; i += turning_warps) {
        const int64_t number = block * W::of_block + i;
        if (number < images)
            plain[number * channels * rows * columns + own.plain] = tile[lane * tile_row * W::images + i];
    }
}

}  // namespace pdt
