// Number formats of gradients: conversion from bits to fp32 and back, without branches so that loops vectorise.
#pragma once

#include "portable.h"

namespace pdt {

// Uses a mask, because the compiler may turn a conditional expression into a branch, which prevents vectorisation.
HOST_DEVICE uint32_t select(bool condition, uint32_t yes, uint32_t no) {
    const uint32_t mask = 0u - static_cast<uint32_t>(condition);
    return (yes & mask) | (no & ~mask);
}

struct Float32 {
    using Bits = int32_t;
    static constexpr Bits without_sign = 0x7fffffff, infinity = 0x7f800000;
    static HOST_DEVICE float decode(Bits bits) { return float_of_bits(static_cast<uint32_t>(bits)); }
    static HOST_DEVICE Bits encode(float value) { return static_cast<Bits>(bits_of_float(value)); }
};

struct BFloat16 {
    using Bits = int16_t;
    static constexpr Bits without_sign = 0x7fff, infinity = 0x7f80;
    static HOST_DEVICE float decode(Bits bits) {
        return float_of_bits(static_cast<uint32_t>(static_cast<uint16_t>(bits)) << 16);
    }
    static HOST_DEVICE Bits encode(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800  // older ones lack this instruction
        uint16_t rounded;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
        return static_cast<Bits>(rounded);
#else
        const uint32_t bits = bits_of_float(value);
        const uint32_t nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const uint32_t result = select(value != value, 0x7fc0u, nearest_even);
        return static_cast<Bits>(static_cast<uint16_t>(result));
#endif
    }
};

struct Float16 {
    using Bits = int16_t;
    static constexpr Bits without_sign = 0x7fff, infinity = 0x7c00;
    static HOST_DEVICE float decode(Bits half) {
#if defined(__CUDA_ARCH__)
        float value;
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
        return value;
#else
        const uint32_t bits = static_cast<uint16_t>(half);
        const uint32_t magnitude = bits & 0x7fffu;
        // Subnormals are converted as integers, because the processor may flush fp32 subnormals to zero.
        const uint32_t subnormal = bits_of_float(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
        const uint32_t normal = (magnitude << 13) + (112u << 23);
        const uint32_t special = normal + (112u << 23);
        uint32_t result = select(magnitude < 0x0400u, subnormal, normal);
        result = select(magnitude >= 0x7c00u, special, result);
        return float_of_bits(result | ((bits & 0x8000u) << 16));
#endif
    }
    static HOST_DEVICE Bits encode(float value) {
#if defined(__CUDA_ARCH__)
        uint16_t rounded;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
        return static_cast<Bits>(rounded);
#else
        const uint32_t bits = bits_of_float(value);
        const uint32_t magnitude = bits & 0x7fffffffu;
        // Adding 0.5 rounds a subnormal result to nearest even, in units of 2^-24.
        const uint32_t subnormal = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
        const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
        uint32_t result = select(magnitude < 0x38800000u, subnormal, normal);
        result = select(magnitude >= 0x477ff000u, 0x7c00u, result);
        result = select(magnitude > 0x7f800000u, 0x7e00u, result);
        return static_cast<Bits>(static_cast<uint16_t>(result | ((bits >> 16) & 0x8000u)));
#endif
    }
};

}  // namespace pdt
