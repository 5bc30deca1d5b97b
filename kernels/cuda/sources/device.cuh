// Device functions for which the emulation in tests/kernels has replacements.
#pragma once

#if !defined(PDT_ON_CPU)
#define DYNAMIC_SHARED(name) extern __shared__ uint4 name[]
// Data that is read or written once should not displace other data from the caches.
static __device__ __forceinline__ uint4 load_once(const uint4* from) { return __ldcs(from); }
static __device__ __forceinline__ void store_once(uint4* to, uint4 value) { __stcs(to, value); }
#endif
