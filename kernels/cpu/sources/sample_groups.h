// Unbiased sampling of a run of groups, in fp32 for all number formats.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "float_formats.h"
#include "keep_bits.h"
#include "lanes.h"
#include "unbiased_sampling.h"

namespace pdt {

template <>
struct RealLane<Vector<float>> {
    using Word = Vector<uint32_t>;
    static HOST_DEVICE Vector<float> splat(float value) { return Vector<float>{} + value; }
    static HOST_DEVICE bool anywhere(Vector<int32_t> condition) { return any_lane(condition); }
    static HOST_DEVICE Vector<float> convert(Word word) {
        return __builtin_convertvector((Vector<int32_t>)word, Vector<float>);
    }
};

// Replaces the magnitudes of whole tiles of groups (lanes<float> groups of M channels, in M vectors) by their values after
// sampling. Returns whether the sums of all groups are finite.
template <int M>
__attribute__((noinline)) bool sample_tiles(float* magnitude, const float* uniform, int64_t groups, int n) {
    bool finite = true;
    for (; groups > 0; groups -= lanes<float>, magnitude += M * lanes<float>, uniform += lanes<float>) {
        Vector<float> tile[M], value[M];
        UNROLL
        for (int i = 0; i < M; ++i) tile[i] = load<float>(magnitude + i * lanes<float>);
        deinterleave<float, M>(tile);
        UNROLL
        for (int c = 0; c < M; ++c) value[c] = tile[reversed_bits(c, M)];
        const Vector<float> total = sample_unbiased<M>(value, n, load<float>(uniform));
        finite &= !any_lane(~(total < Vector<float>{} + Float32::decode(Float32::infinity)));
        UNROLL
        for (int c = 0; c < M; ++c) tile[reversed_bits(c, M)] = value[c];
        interleave<float, M>(tile);
        UNROLL
        for (int i = 0; i < M; ++i) store<float>(magnitude + i * lanes<float>, tile[i]);
    }
    return finite;
}

// Uniform numbers of at most batch_elements / 2 groups. Philox blocks have four numbers and are drawn lanes<uint64_t> at once.
struct Uniforms {
    alignas(vector_bytes) float number[batch_elements / 2 + 4 + 4 * lanes<uint64_t>];
    const float* draw(uint64_t seed, int64_t first, int64_t groups) {
        float* to = number;
        for (int64_t block = first / 4; 4 * block < first + groups; block += lanes<uint64_t>) {
            Vector<uint32_t> word[2];
            philox_words(static_cast<uint64_t>(block), seed, word);
            for (int i = 0; i < 2; ++i, to += lanes<float>) store<float>(to, uniform_of<Vector<float>>(word[i]));
        }
        return number + first % 4;
    }
};

// Writes the sampled values of groups first .. last - 1 (counted as in `keep_by_magnitude`), which may replace `from`. A
// group whose sum is not finite keeps its elements. Returns whether all sums are finite.
template <class Format>
bool sample(const Problem& problem, int64_t first, int64_t last, const typename Format::Bits* from,
            typename Format::Bits* values) {
    using Bits = typename Format::Bits;
    const int64_t start = problem.offset(first), batch = batch_elements / problem.padded;
    bool all_finite = true;
    for (int64_t end; first < last; first = end) {
        end = std::min(last, first + batch);
        const int64_t skipped = problem.offset(first) - start;
        alignas(vector_bytes) float magnitude[batch_elements + 32 * lanes<float>] = {};
        Uniforms uniforms;
        const auto value_of = [&](Bits bits) { return Format::decode(static_cast<Bits>(bits & Format::without_sign)); };
        for_neighbours(problem, first, end, [&](int64_t place, int64_t element, int64_t count) {
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) magnitude[place + i] = value_of(from[skipped + element + i]);
        });
        const float* uniform = uniforms.draw(problem.seed, first, end - first);
        const bool finite = with_size(
            problem.padded, [&](auto m) { return sample_tiles<m>(magnitude, uniform, end - first, problem.n); });
        const auto write = [&](int64_t place, int64_t element, int64_t count) {
#pragma omp simd
            for (int64_t i = 0; i < count; ++i) {
                const Bits sampled = Format::encode(magnitude[place + i]), bits = from[skipped + element + i];
                const Bits some = static_cast<Bits>(-static_cast<int32_t>(sampled != 0));
                values[skipped + element + i] = static_cast<Bits>(sampled | (bits & ~Format::without_sign & some));
            }
        };
        if (finite) {
            for_neighbours(problem, first, end, write);
            continue;
        }
        all_finite = false;
        for (int64_t g = first; g < end; ++g) {
            const int64_t element = problem.offset(g) - start - skipped, size = problem.offset(g + 1) - problem.offset(g);
            float total = 0.0f;
            for (int64_t c = 0; c < size; ++c) total += value_of(from[skipped + element + c]);
            if (std::isfinite(total))
                write((g - first) * problem.padded, element, size);
            else if (values != from)
                std::copy_n(from + skipped + element, size, values + skipped + element);
        }
    }
    return all_finite;
}

}  // namespace pdt
