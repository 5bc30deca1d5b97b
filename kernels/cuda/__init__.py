"""Compilation and launch of CUDA kernels through NVRTC and CuPy, and their sources."""
