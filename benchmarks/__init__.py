"""Programs that measure times and check results; `tests/` asserts no time.

`kernels` times and checks the pruning kernels, `gradients` the gradients that skip pruned channels, `steps` whole
training steps, `pipeline` the reading of images, `engines` what Ray adds, and `reports` how fast and large reports are.
Run each program as a module from the root of the repository, such as `python -m benchmarks.steps.bench_step --help`.
"""
