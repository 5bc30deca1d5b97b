"""Programs that measure times and check results; `tests/` asserts no time.

`kernels` times and checks the pruning kernels, `gradients` the gradients that skip pruned channels, `step` whole
training steps, and `input` the reading of images. `simulate_claims` counts wrong verdicts, `guards` compares trainings
of two checkouts, and `campaign` trains what a list lacks. Run each program as a module from the root of the repository,
such as `python -m benchmarks.step --help`.
"""
