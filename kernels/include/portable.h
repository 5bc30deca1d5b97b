// Names that differ between host compilers, nvcc and NVRTC.
#pragma once

#if defined(__CUDACC_RTC__)
// NVRTC lacks the headers of the C library.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#include <cstring>
#endif

#if defined(__CUDACC__)
#define HOST_DEVICE __host__ __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define HOST_DEVICE inline __attribute__((always_inline))
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define HOST_DEVICE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace pdt {

HOST_DEVICE float float_of_bits(uint32_t bits) {
#if defined(__CUDA_ARCH__)
    return __uint_as_float(bits);
#else
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
#endif
}

HOST_DEVICE uint32_t bits_of_float(float value) {
#if defined(__CUDA_ARCH__)
    return __float_as_uint(value);
#else
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
#endif
}

}  // namespace pdt
