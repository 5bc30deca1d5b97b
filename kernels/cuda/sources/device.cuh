// What the emulation of tests/kernels has under the same names.
#pragma once

#if !defined(PDT_ON_CPU)
#define DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
// Read and written once: kept out of the way of what the caches are for.
static __device__ __forceinline__ uint4 load_once(const uint4* from) { return __ldcs(from); }
static __device__ __forceinline__ void store_once(uint4* to, uint4 value) { __stcs(to, value); }
#endif
