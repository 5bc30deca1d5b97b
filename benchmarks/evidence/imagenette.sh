#!/usr/bin/env bash
# Train all methods on Imagenette with ResNet-18 at 96 pixels, and export the results to results/:
#     benchmarks/evidence/imagenette.sh results/NAME [OUT]
# Preset quick, one seed, float32; OUT is the working folder (runs/imagenette). After a stop, the same command
# continues. Trials can run on a machine that does other work; the time pass needs it quiet, and refuses it otherwise.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/imagenette}
quick=(--task imagenette --preset quick --seeds 1 --dtype float32 --out "$out")
python run_suite.py --methods "dense,sdgp,prunetrain,clicktrain,sdgp[mode=random|magnitude]" "${quick[@]}"
python run_suite.py time "$out"
python run_suite.py export "$out" "$destination"
