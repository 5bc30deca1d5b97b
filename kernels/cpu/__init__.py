"""Compilation of C++ kernels by the machine's compiler, and their sources."""
