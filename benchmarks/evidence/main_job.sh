#!/usr/bin/env bash
# The main job by the short recipe, with three seeds, and its figures as they are kept in results/:
#     benchmarks/evidence/main_job.sh results/NAME
# Twelve trials of about eight minutes on two cores that do nothing else. Stopped, the same command goes on.
set -euo pipefail
destination=${1:?name the folder under results/ that keeps the figures}
out=runs/main-job
python run_suite.py --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain" --task cifar10 --preset quick --seeds 3 --out "$out"
python run_suite.py export "$out" "$destination"
