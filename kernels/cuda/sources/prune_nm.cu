// All CUDA kernels of n:m pruning; `kernels.prune.cuda_plan` selects the kernels for a gradient.
#include "device.cuh"

#include "any_shape.cuh"
#include "prune.cuh"
#include "rescale.cuh"
