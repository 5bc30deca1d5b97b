// Sums of magnitudes per channel in fp32, their ratio, and the multiplication by the ratio, for channels-last pixels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {

// The fp32 values of one vector of elements, as `parts` vectors. Each format has its own order of elements. Sums and
// ratios have the same order, so no element is shuffled.
template <class Format>
struct Wide;

template <>
struct Wide<Float32> {
    static constexpr int parts = 1;
    static HOST_DEVICE void decode(Vector<int32_t> bits, Vector<float> (&value)[1]) { value[0] = (Vector<float>)bits; }
    static HOST_DEVICE Vector<int32_t> encode(const Vector<float> (&value)[1]) { return (Vector<int32_t>)value[0]; }
};

// Even elements, then odd ones. Each element is the upper half of its fp32 value.
template <>
struct Wide<BFloat16> {
    static constexpr int parts = 2;
    static HOST_DEVICE void decode(Vector<int16_t> bits, Vector<float> (&value)[2]) {
        const Vector<uint32_t> pair = (Vector<uint32_t>)bits;
        value[0] = (Vector<float>)(pair << 16);
        value[1] = (Vector<float>)(pair & 0xffff0000u);
    }
    static HOST_DEVICE Vector<int16_t> encode(const Vector<float> (&value)[2]) {
        return (Vector<int16_t>)((round(value[0]) >> 16) | (round(value[1]) & 0xffff0000u));
    }

  private:
    // Rounds to nearest even in the upper half.
    static HOST_DEVICE Vector<uint32_t> round(Vector<float> value) {
        const Vector<uint32_t> bits = (Vector<uint32_t>)value;
        const Vector<uint32_t> rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
        const Vector<uint32_t> is_number = (Vector<uint32_t>)(value == value);
        return (rounded & is_number) | (0x7fc00000u & ~is_number);
    }
};

// First half, then second half.
template <>
struct Wide<Float16> {
    static constexpr int parts = 2, half = lanes<float>;
    static HOST_DEVICE void decode(Vector<int16_t> bits, Vector<float> (&value)[2]) {
#if defined(__AVX512BW__)
        value[0] = (Vector<float>)_mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)bits));
        value[1] = (Vector<float>)_mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)bits, 1));
#else
        for (int part = 0; part < 2; ++part)
            for (int i = 0; i < half; ++i) value[part][i] = Float16::decode(bits[part * half + i]);
#endif
    }
    static HOST_DEVICE Vector<int16_t> encode(const Vector<float> (&value)[2]) {
#if defined(__AVX512BW__)
        const __m256i low = _mm512_cvtps_ph((__m512)value[0], _MM_FROUND_TO_NEAREST_INT);
        const __m256i high = _mm512_cvtps_ph((__m512)value[1], _MM_FROUND_TO_NEAREST_INT);
        return (Vector<int16_t>)_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
        Vector<int16_t> bits{};
        for (int part = 0; part < 2; ++part)
            for (int i = 0; i < half; ++i) bits[part * half + i] = Float16::encode(value[part][i]);
        return bits;
#endif
    }
};

// Returns quotients of sums, and 0 if nothing was kept.
HOST_DEVICE Vector<float> ratio_of(Vector<float> dense, Vector<float> kept) {
    const Vector<int32_t> some = kept != 0.0f;
    return (Vector<float>)((Vector<int32_t>)(dense / kept) & some);
}

// Memory for vectors, divided into equal parts.
class VectorMemory {
  public:
    explicit VectorMemory(int64_t vectors) : memory_(static_cast<std::size_t>(vectors)) {}
    Vector<float>* part(int64_t index, int64_t vectors) {
        return reinterpret_cast<Vector<float>*>(memory_.data() + index * vectors);
    }

  private:
    struct alignas(vector_bytes) Bytes {
        unsigned char byte[vector_bytes];
    };
    std::vector<Bytes> memory_;
};

// Layout of the sums of a problem: sums of |G| per channel, then sums of |G^|, in the order of `Wide`.
template <class Format>
struct ChannelSums {
    static constexpr int width = lanes<typename Format::Bits>, parts = Wide<Format>::parts;
    int64_t channels, rows, vectors;  // a row is one vector of elements of a pixel

    explicit ChannelSums(int64_t channels)
        : channels(channels), rows((channels + width - 1) / width), vectors(2 * rows * parts) {}

    Vector<float>* dense(Vector<float>* sums) const { return sums; }
    Vector<float>* kept(Vector<float>* sums) const { return sums + rows * parts; }
    void clear(Vector<float>* sums) const { std::fill(sums, sums + vectors, Vector<float>{}); }
    void add(Vector<float>* sums, const Vector<float>* others) const {
        for (int64_t i = 0; i < vectors; ++i) sums[i] += others[i];
    }
    // Replaces dense by dense / kept, and by 0 if nothing was kept.
    void divide(Vector<float>* sums) const {
        for (int64_t i = 0; i < rows * parts; ++i) {
            sums[i] = ratio_of(sums[i], kept(sums)[i]);
        }
    }
    // Adds the sums of all blocks in their order, and returns the ratios of the total.
    const Vector<float>* ratios(VectorMemory& sums_of_blocks, int64_t blocks) const {
        Vector<float>* total = sums_of_blocks.part(0, vectors);
        for (int64_t block = 1; block < blocks; ++block) add(total, sums_of_blocks.part(block, vectors));
        divide(total);
        return dense(total);
    }
};

// Adds the magnitudes of a few pixels to the sums of their channels, with partial sums in registers. It processes `Rows`
// vectors of each pixel, so that memory is read in order.
template <class Format, int Rows>
void add_rows(const ChannelSums<Format>& shape, int64_t row, const typename Format::Bits* pixels, int64_t count,
              Vector<float>* sums) {
    using Bits = typename Format::Bits;
    constexpr int parts = Wide<Format>::parts;
    const Vector<Bits> without_sign = Lane<Vector<Bits>>::splat(Format::without_sign);
    const Bits* from = pixels + row * shape.width;
    const int64_t left = shape.channels - (row + Rows - 1) * shape.width;  // elements of the last vector
    Vector<float> partial[Rows][parts] = {};
    for (int64_t pixel = 0; pixel < count; ++pixel, from += shape.channels) {
        UNROLL
        for (int r = 0; r < Rows; ++r) {
            Vector<float> value[parts];
            const Vector<Bits> bits = r + 1 < Rows ? load<Bits>(from + r * shape.width)
                                                   : load_first(from + r * shape.width, left);
            Wide<Format>::decode(bits & without_sign, value);
            UNROLL
            for (int part = 0; part < parts; ++part) partial[r][part] += value[part];
        }
    }
    UNROLL
    for (int r = 0; r < Rows; ++r) {
        UNROLL
        for (int part = 0; part < parts; ++part) sums[(row + r) * parts + part] += partial[r][part];
    }
}

template <class Format>
void add_magnitudes(const ChannelSums<Format>& shape, const typename Format::Bits* pixels, int64_t count,
                    Vector<float>* sums) {
    int64_t row = 0;
    for (; row + 8 <= shape.rows; row += 8) add_rows<Format, 8>(shape, row, pixels, count, sums);
    for (; row + 2 <= shape.rows; row += 2) add_rows<Format, 2>(shape, row, pixels, count, sums);
    for (; row < shape.rows; ++row) add_rows<Format, 1>(shape, row, pixels, count, sums);
}

// A pruned channel stays exactly zero, even if the ratio is not finite.
template <class Format>
HOST_DEVICE Vector<typename Format::Bits> rescaled(Vector<typename Format::Bits> bits, const Vector<float>* ratio) {
    using Vec = Vector<typename Format::Bits>;
    Vector<float> value[Wide<Format>::parts];
    Wide<Format>::decode(bits, value);
    UNROLL
    for (int part = 0; part < Wide<Format>::parts; ++part) value[part] *= ratio[part];
    const Vec nonzero = (bits & Lane<Vec>::splat(Format::without_sign)) != Lane<Vec>::splat(0);
    return (Wide<Format>::encode(value) & nonzero) | (bits & ~nonzero);
}

// Multiplies pixels by the ratios of their channels; `to` may be `from`.
template <class Format>
void multiply_pixels(const ChannelSums<Format>& shape, const typename Format::Bits* from, typename Format::Bits* to,
                     int64_t count, const Vector<float>* ratio) {
    constexpr int parts = Wide<Format>::parts;
    const int64_t whole = shape.channels / shape.width * shape.width, left = shape.channels - whole;
    for (int64_t p = 0; p < count; ++p, from += shape.channels, to += shape.channels) {
        const Vector<float>* row = ratio;
        for (int64_t c = 0; c < whole; c += shape.width, row += parts)
            store<typename Format::Bits>(to + c, rescaled<Format>(load<typename Format::Bits>(from + c), row));
        if (left > 0) store_first(to + whole, rescaled<Format>(load_first(from + whole, left), row), left);
    }
}

}  // namespace pdt
