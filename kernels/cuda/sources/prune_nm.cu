// All CUDA kernels of n:m pruning; `kernels.prune.cuda_plan` says which of them a gradient needs.
#include "device.cuh"

#include "any_shape.cuh"
#include "compress.cuh"
#include "prune.cuh"
#include "rescale.cuh"
