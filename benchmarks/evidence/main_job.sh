#!/usr/bin/env bash
# Run the main job with preset quick, recipe resnet9 and three seeds, and export its results to results/:
#     benchmarks/evidence/main_job.sh results/NAME
# Twelve trials take about eight minutes each on two otherwise idle cores. After a stop, the same command continues.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=runs/main-job
python run_suite.py --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain" --task cifar10 --preset quick --recipe resnet9 --seeds 3 --out "$out"
python run_suite.py export "$out" "$destination"
