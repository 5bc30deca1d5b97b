#!/usr/bin/env bash
# Train the reference comparison of all methods, and export the results to results/:
#     benchmarks/evidence/reference.sh results/NAME [OUT]
# Preset quick, recipe resnet9, three seeds, float32 (in which dense steps are faster on CPUs without matrix units for
# bfloat16); OUT is the working folder (runs/reference). The controls of dense training for fewer epochs are what a method has to beat at
# equal cost. After a stop, the same command continues. Trials can run on a machine that does other work; both passes
# need it quiet, and refuse it otherwise.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/reference}
quick=(--task cifar10 --preset quick --recipe resnet9 --seeds 3 --dtype float32 --out "$out")
python run_suite.py --methods "dense,sdgp,prunetrain,clicktrain" "${quick[@]}"
for epochs in 6 5 4 3; do python run_suite.py --methods dense --epochs $epochs "${quick[@]}"; done
python run_suite.py time "$out"
python run_suite.py profile "$out"
python run_suite.py export "$out" "$destination"
