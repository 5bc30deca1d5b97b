#!/usr/bin/env bash
# Train all methods on Imagenette with ResNet-18, and export the results to results/:
#     benchmarks/evidence/imagenette.sh results/NAME [OUT [DTYPE]]
# Preset quick, one seed, two trials at a time. OUT is the working folder (runs/imagenette), and DTYPE is float32 by default.
# Choose the type in which dense training is faster: bfloat16 on AMD EPYC processors of families 25 and 26, and float32 on
# a Xeon whose matrix units are hidden. After a stop, the same command continues.
# Trials can run on a machine that does other work; the time pass needs it quiet, and refuses it otherwise.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/imagenette}
quick=(--task imagenette --preset quick --seeds 1 --jobs 2 --dtype "${3:-float32}" --out "$out")
python run_suite.py --methods "dense,sdgp,prunetrain,clicktrain,sdgp[mode=random|magnitude]" "${quick[@]}"
python run_suite.py time "$out"
python run_suite.py export "$out" "$destination"
