// Compression: appends the kept elements of a vector, widened to fp32, and their channel numbers to two arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "lanes.h"

namespace pdt {

// The two arrays of a compressed gradient, and the end of the part that the thread may write.
struct Compressed {
    float* values;
    int16_t* channels;
    const float* end;
};

// Returns `count` keep bits from bit `first` on; reads 8 bytes.
inline uint64_t bits_from(const uint8_t* bits, int64_t first, int count) {
    uint64_t word;
    std::memcpy(&word, bits + first / 8, sizeof word);
    return word >> first % 8 & ((uint64_t{1} << count) - 1);
}

// Writes `lanes<Bits>` elements from values and channels on, of which only the first `popcount(keep)` count. `channel` is
// the number of the first element.
template <class Format>
struct KeptLanes {
    using Bits = typename Format::Bits;
    static constexpr int width = lanes<Bits>;

    static HOST_DEVICE void write(Vector<Bits> value, uint64_t keep, int channel, float* values, int16_t* channels) {
#if defined(__AVX512BW__)
        UNROLL
        for (int part = 0; part < width; part += 16) {
            const __mmask16 mask = static_cast<__mmask16>(keep >> part);
            const int before = part == 0 ? 0 : __builtin_popcountll(keep & 0xffff);
            const __m512i number = _mm512_add_epi32(_mm512_set1_epi32(channel + part), _mm512_set_epi32(
                15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
            _mm512_storeu_ps(values + before, _mm512_maskz_compress_ps(mask, widened(value, part)));
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(channels + before),
                                _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(mask, number)));
        }
#else
        for (; keep != 0; keep &= keep - 1) {
            const int lane = __builtin_ctzll(keep);
            *values++ = Format::decode(value[lane]);
            *channels++ = static_cast<int16_t>(channel + lane);
        }
#endif
    }

#if defined(__AVX512BW__)
  private:
    static HOST_DEVICE __m512 widened(Vector<Bits> value, int part) {
        if constexpr (width == 16) {
            return (__m512)value;
        } else {
            const __m256i half = part == 0 ? _mm512_castsi512_si256((__m512i)value)
                                           : _mm512_extracti64x4_epi64((__m512i)value, 1);
            if constexpr (Format::infinity == BFloat16::infinity)
                return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
            else
                return _mm512_cvtph_ps(half);
        }
    }
#endif
};

// Appends the kept elements of a vector.
template <class Format>
void append_kept(Vector<typename Format::Bits> value, uint64_t keep, int64_t channel, Compressed& to) {
    constexpr int width = KeptLanes<Format>::width;
    const int count = __builtin_popcountll(keep);
    if (to.end - to.values >= width) {
        KeptLanes<Format>::write(value, keep, static_cast<int>(channel), to.values, to.channels);
    } else {
        float values[2 * width];
        int16_t channels[2 * width];
        KeptLanes<Format>::write(value, keep, static_cast<int>(channel), values, channels);
        std::memcpy(to.values, values, static_cast<std::size_t>(count) * sizeof(float));
        std::memcpy(to.channels, channels, static_cast<std::size_t>(count) * sizeof(int16_t));
    }
    to.values += count;
    to.channels += count;
}

}  // namespace pdt
