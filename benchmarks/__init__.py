"""Programs that measure times and check results; `tests/` asserts no time.

`kernels` times and checks the pruning kernels, `gradients` the gradients that skip pruned channels, `steps` times whole
training steps, and `products` searches for convolutions that compute wrong values. `evidence` holds what the
documentation quotes to the files in `results/`, and the script for a GPU machine. Run each program as a module from the
root of the repository, for example `python -m benchmarks.steps.bench_step --help`.
"""
