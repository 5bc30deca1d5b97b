"""The CUDA kernels: their sources, which of them a gradient needs, and their launch through CuPy."""
