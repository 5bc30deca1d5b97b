// The data gradient and the weight gradient of a convolution or linear layer from a compressed output gradient, without
// work for pruned channels. A linear layer is a convolution of images with one pixel.
#include <cstdint>
#include <cstring>
#include <new>

#include "compressed_dgrad.h"
#include "compressed_wgrad.h"

namespace {

// Calls `run` with the layer and the number format; returns a status as below.
template <class Run>
int run_with(const int64_t* numbers, const int16_t* channel, int format, int threads, const Run& run) {
    pdt::Layer layer;
    std::memcpy(&layer, numbers, sizeof layer);
    try {
        if (!pdt::channels_are_in_their_groups(layer, channel, threads)) return 3;
        switch (format) {
            case 0: run(layer, pdt::Float32{}); break;
            case 1: run(layer, pdt::BFloat16{}); break;
            default: run(layer, pdt::Float16{}); break;
        }
    } catch (const std::bad_alloc&) {
        return 2;
    }
    return 0;
}

} // namespace

// The functions below return 0, 2 if memory cannot be allocated, or 3 if a channel is not in the group of its value. With
// 3, nothing is written. `numbers` are the fields of pdt::Layer. format: 0 fp32, 1 bf16, 2 fp16. value (fp32) and channel:
// (N, P, Q, kept).

// weight: fp32, (K, R, S, C / groups). out: (N, H, W, C) of the format.
extern "C" int pdt_data_gradient(const int64_t* numbers, const float* value, const int16_t* channel, const int32_t* weight,
                                 void* out, int format, int threads) {
    return run_with(numbers, channel, format, threads, [&](const pdt::Layer& layer, auto of) {
        using Format = decltype(of);
        pdt::data_gradient<Format>(layer, value, channel, weight, static_cast<typename Format::Bits*>(out), threads);
    });
}

// activation: (N, H, W, C) of the format. out: fp32, (K, R, S, C / groups).
extern "C" int pdt_weight_gradient(const int64_t* numbers, const float* value, const int16_t* channel,
                                   const void* activation, float* out, int format, int threads) {
    return run_with(numbers, channel, format, threads, [&](const pdt::Layer& layer, auto of) {
        using Format = decltype(of);
        pdt::weight_gradient<Format>(layer, value, channel, static_cast<const typename Format::Bits*>(activation), out,
                                     threads);
    });
}
