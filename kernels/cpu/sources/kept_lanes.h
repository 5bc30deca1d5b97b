// Compression: appends the kept elements of a vector, widened to fp32, and their channel numbers to two arrays.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "keep_bits.h"
#include "lanes.h"

namespace pdt {

// The two arrays of a compressed gradient, and the end of the part that the thread may write.
struct Compressed {
    float* values;
    int16_t* channels;
    const float* end;
};

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

// Compresses whole 64-bit words of keep bits, each of which keeps `kept` elements; all words start at a whole pixel or
// inside one with a multiple of 64 channels. Few kept elements are found one by one; many are moved in vectors.
template <class Format>
struct KeptWords {
    using Bits = typename Format::Bits;
    int64_t channels;  // a multiple or a divisor of 64
    int kept;

    // Returns the number of words that are compressed: vectors need room to write beyond the last value.
    int64_t compress(const Bits* from, const uint8_t* keep_bits, int64_t words, Compressed& to) const {
        const int within = channels < 64 ? static_cast<int>(channels) - 1 : 63;
        int base = 0;
        const auto next = [&](int64_t word) {
            uint64_t keep;
            std::memcpy(&keep, keep_bits + 8 * word, sizeof keep);
            to.values += kept;
            to.channels += kept;
            base = base + 64 < channels ? base + 64 : 0;
            return keep;
        };
#if defined(__AVX512VBMI2__) && defined(__AVX512BW__)
        if (kept > 8) {
            const int64_t room = std::max<int64_t>(0, (to.end - to.values - 64) / kept);
            const __m512i low = numbers(0, within), high = numbers(32, within);
            words = std::min(words, room);
            for (int64_t word = 0; word < words; ++word, from += 64) {
                float* values = to.values;
                int16_t* places = to.channels;
                const __m512i first = _mm512_set1_epi16(static_cast<int16_t>(base));
                const uint64_t keep = next(word);
                const uint32_t keep_low = static_cast<uint32_t>(keep), keep_high = static_cast<uint32_t>(keep >> 32);
                const int before = __builtin_popcount(keep_low);
                move(from, keep_low, values);
                move(from + 32, keep_high, values + before);
                store_words(places, _mm512_maskz_compress_epi16(keep_low, _mm512_add_epi16(low, first)));
                store_words(places + before, _mm512_maskz_compress_epi16(keep_high, _mm512_add_epi16(high, first)));
            }
            return words;
        }
#endif
        for (int64_t word = 0; word < words; ++word, from += 64) {
            float* values = to.values;
            int16_t* places = to.channels;
            const int first = base;
            uint64_t keep = next(word);
            for (int j = 0; j < kept; j += 2) {  // a word has at least two groups
                UNROLL
                for (int k = 0; k < 2; ++k, keep &= keep - 1) {
                    const int place = __builtin_ctzll(keep);
                    values[j + k] = Format::decode(from[place]);
                    places[j + k] = static_cast<int16_t>(first + (place & within));
                }
            }
        }
        return words;
    }

#if defined(__AVX512VBMI2__) && defined(__AVX512BW__)
  private:
    static HOST_DEVICE void store_words(int16_t* to, __m512i words) { _mm512_storeu_si512(to, words); }
    static __m512i numbers(int first, int within) {
        Vector<int16_t> number;
        for (int i = 0; i < 32; ++i) number[i] = static_cast<int16_t>((first + i) & within);
        return (__m512i)number;
    }
    // Moves the kept ones of 32 elements.
    static HOST_DEVICE void move(const Bits* from, uint32_t keep, float* values) {
        if constexpr (sizeof(Bits) == 4) {
            const __mmask16 low = static_cast<__mmask16>(keep), high = static_cast<__mmask16>(keep >> 16);
            _mm512_storeu_ps(values, _mm512_maskz_compress_ps(low, _mm512_loadu_ps(from)));
            _mm512_storeu_ps(values + __builtin_popcount(low), _mm512_maskz_compress_ps(high, _mm512_loadu_ps(from + 16)));
        } else {
            const __m512i kept = _mm512_maskz_compress_epi16(keep, _mm512_loadu_si512(from));
            _mm512_storeu_ps(values, widened(_mm512_castsi512_si256(kept)));
            _mm512_storeu_ps(values + 16, widened(_mm512_extracti64x4_epi64(kept, 1)));
        }
    }
    static HOST_DEVICE __m512 widened(__m256i half) {
        if constexpr (Format::infinity == BFloat16::infinity)
            return (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
        else
            return _mm512_cvtph_ps(half);
    }
#endif
};

}  // namespace pdt
