// Unbiased pruning of a run of groups. There are fast paths for m = 2, 4, 8, 16 and 32 if m divides the channels, and one
// path for all other cases.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "channel_sums.h"
#include "prune_blocks.h"
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

// Not inlined, because each of the many paths would have a copy of it.
template <int M>
__attribute__((noinline)) Vector<float> sample_lanes(Vector<float> (&value)[M], int n, Vector<float> uniform) {
    return sample_unbiased<M>(value, n, uniform);
}

// Distributes the random words of a tile over the parts of `Wide`: word i belongs to lane i of the tile. Tiles of fp32
// have half as many lanes as there are words.
HOST_DEVICE void arrange(Float32, const Vector<uint32_t> (&word)[2], int tile, Vector<uint32_t> (&part)[1]) {
    part[0] = word[tile];
}
HOST_DEVICE void arrange(BFloat16, const Vector<uint32_t> (&word)[2], int, Vector<uint32_t> (&part)[2]) {
    using Sequence = std::make_index_sequence<lanes<uint32_t>>;
    part[0] = even_lanes(word[0], word[1], Sequence{});
    part[1] = odd_lanes(word[0], word[1], Sequence{});
}
HOST_DEVICE void arrange(Float16, const Vector<uint32_t> (&word)[2], int, Vector<uint32_t> (&part)[2]) {
    part[0] = word[0];
    part[1] = word[1];
}

// A tile consists of lanes<Bits> consecutive groups of M channels, in M vectors.
template <class Format, int M>
struct UnbiasedTile {
    using Bits = typename Format::Bits;
    using Vec = Vector<Bits>;
    static constexpr int parts = Wide<Format>::parts, elements = M * lanes<Bits>;

    // Prunes a tile; the values may replace `from`. The whole tile is loaded before anything is stored.
    template <Output What>
    static HOST_DEVICE void prune(const Bits* from, const Target<Format, What>& to, int n,
                                  const Vector<uint32_t> (&word)[parts]) {
        Vec bits[M];
        const bool finite = sample(from, n, word, bits);
        if (Target<Format, What>::has_bits || !finite) return finish(from, bits, to, n);
        UNROLL
        for (int i = 0; i < M; ++i) to.write_kept(i * lanes<Bits>, bits[i]);
    }

  private:
    // Returns the pruned elements in `bits`, and whether the sums of all groups are finite.
    static __attribute__((noinline)) bool sample(const Bits* from, int n, const Vector<uint32_t> (&word)[parts],
                                                 Vec (&bits)[M]) {
        UNROLL
        for (int i = 0; i < M; ++i) bits[i] = load<Bits>(from + i * lanes<Bits>);
        deinterleave<Bits, M>(bits);
        Vector<float> magnitude[parts][M], total[parts];
        UNROLL
        for (int c = 0; c < M; ++c) {
            Vector<float> value[parts];
            Wide<Format>::decode(bits[reversed_bits(c, M)] & Lane<Vec>::splat(Format::without_sign), value);
            UNROLL
            for (int part = 0; part < parts; ++part) magnitude[part][c] = value[part];
        }
        bool finite = true;
        UNROLL
        for (int part = 0; part < parts; ++part) {
            total[part] = sample_lanes<M>(magnitude[part], n, uniform_of<Vector<float>>(word[part]));
            finite &= !any_lane(~(total[part] < infinity()));
        }
        UNROLL
        for (int c = 0; c < M; ++c) {
            Vector<float> value[parts];
            UNROLL
            for (int part = 0; part < parts; ++part) value[part] = magnitude[part][c];
            Vec& place = bits[reversed_bits(c, M)];
            const Vec sampled = Wide<Format>::encode(value), kept = sampled != Lane<Vec>::splat(0);
            place = sampled | (place & kept & ~Lane<Vec>::splat(Format::without_sign));
        }
        interleave<Bits, M>(bits);
        return finite;
    }

    static HOST_DEVICE Vector<float> infinity() {
        return RealLane<Vector<float>>::splat(Float32::decode(Float32::infinity));
    }

    // Keeps the n largest of each group. In groups whose sum is not finite, these are original elements. In other groups,
    // these are the sampled elements, and zeros if there are fewer than n.
    template <Output What>
    static __attribute__((noinline)) void finish(const Bits* from, const Vec (&sampled)[M],
                                                 const Target<Format, What>& to, int n) {
        alignas(vector_bytes) Bits tile[elements];
        std::memcpy(tile, sampled, sizeof tile);
        for (int first = 0; first < elements; first += M) {
            float total = 0.0f;
            for (int c = 0; c < M; ++c) total += Format::decode(from[first + c] & Format::without_sign);
            if (!std::isfinite(total)) std::memcpy(tile + first, from + first, M * sizeof(Bits));
        }
        Tile<Format, M>::prune(tile, to, n);
    }
};

template <class Format, int M, Output What>
void prune_whole_groups_unbiased(const Problem& problem, Run<Format, What> run) {
    using Bits = typename Format::Bits;
    using Unbiased = UnbiasedTile<Format, M>;
    constexpr int tile_groups = lanes<Bits>, tile = tile_groups * M, tiles = 2 * lanes<uint32_t> / tile_groups;
    // The first group starts at a whole Philox block.
    for (uint64_t block = static_cast<uint64_t>(run.first) / 4; run.first < run.last; block += lanes<uint64_t>) {
        Vector<uint32_t> word[2], own[Unbiased::parts];
        philox_words(block, problem.seed, word);
        for (int t = 0; t < tiles && run.first < run.last; ++t) {
            arrange(Format{}, word, t, own);
            if (run.first + tile_groups <= run.last) {
                Unbiased::prune(run.from, run.to, problem.n, own);
            } else {
                Bits rest[tile] = {};
                const std::size_t bytes = static_cast<std::size_t>(run.last - run.first) * M * sizeof(Bits);
                std::memcpy(rest, run.from, bytes);
                Unbiased::prune(rest, run.to.with_values(rest), problem.n, own);
                if constexpr (Target<Format, What>::has_values) std::memcpy(run.to.values, rest, bytes);
            }
            run.first += tile_groups;
            run.from += tile;
            run.to.advance(tile);
        }
    }
}

// M is the smallest power of two that is at least m; missing channels of a group have the magnitude 0 and the key -1.
template <class Format, int M, Output What>
void prune_any_groups_unbiased(const Problem& problem, const Run<Format, What>& run) {
    using Bits = typename Format::Bits;
    const int64_t start = locate(problem, run.first).offset;
    uint64_t drawn = ~uint64_t{0};
    PhiloxBlock<uint64_t> block{};
    for (int64_t first = run.first; first < run.last; first += lanes<float>) {
        const int count = static_cast<int>(std::min<int64_t>(lanes<float>, run.last - first));
        alignas(vector_bytes) float value_lane[M][lanes<float>] = {}, uniform_lane[lanes<float>] = {};
        Group group[lanes<float>];
        for (int lane = 0; lane < count; ++lane) {
            const uint64_t index = static_cast<uint64_t>(first + lane);
            if (index / 4 != drawn) {
                drawn = index / 4;
                block = philox4x32(drawn, problem.seed);
            }
            uniform_lane[lane] = uniform_of<float>(static_cast<uint32_t>(block.word[index % 4]));
            group[lane] = locate(problem, first + lane);
            group[lane].offset -= start;
            for (int c = 0; c < group[lane].size; ++c)
                value_lane[c][lane] = Format::decode(run.from[group[lane].offset + c] & Format::without_sign);
        }
        Vector<float> value[M];
        std::memcpy(value, value_lane, sizeof value);
        const Vector<float> total = sample_lanes<M>(value, problem.n, load<float>(uniform_lane));
        std::memcpy(value_lane, value, sizeof value);
        for (int lane = 0; lane < count; ++lane) {
            const bool finite = std::isfinite(total[lane]);
            Bits bits[M];
            int32_t key[M], keep[M];
            for (int c = 0; c < M; ++c) {
                key[c] = keep[c] = -1;
                if (c >= group[lane].size) continue;
                bits[c] = run.from[group[lane].offset + c];
                if (finite) {
                    const Bits sampled = Format::encode(value_lane[c][lane]);
                    bits[c] = static_cast<Bits>(sampled | (sampled != 0 ? bits[c] & ~Format::without_sign : 0));
                }
                key[c] = magnitude_key<int32_t>(bits[c], Format::without_sign, Format::infinity + 1);
            }
            // The n largest are the sampled ones, unless the sum is not finite; zeros fill up.
            if (Target<Format, What>::has_bits || !finite) keep_largest<M>(key, problem.n, keep);
            for (int c = 0; c < group[lane].size; ++c)
                run.to.write_one(group[lane].offset + c, bits[c], static_cast<Bits>(keep[c]));
        }
    }
}

}  // namespace pdt
