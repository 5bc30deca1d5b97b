#!/usr/bin/env bash
# Measure the accuracy and time of SDGP at higher ratios than the published default, and export the results to results/:
#     benchmarks/evidence/sdgp_ratios.sh results/NAME [OUT]
# Preset quick, three seeds, float32 (in which dense steps are faster on CPUs without matrix units for bfloat16); OUT is the
# working folder (runs/sdgp-ratios). The second and third command train dense networks for as long as the faster methods take:
# dense training for fewer epochs is what a method has to beat at equal time. After a stop, the same command continues.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/sdgp-ratios}
quick=(--task cifar10 --preset quick --seeds 3 --dtype float32 --out "$out")
python run_suite.py --methods "dense,sdgp[n=2,m=16],sdgp[n=2,m=16,products=both]" "${quick[@]}"
python run_suite.py --methods dense --epochs 6 "${quick[@]}"
python run_suite.py --methods dense --epochs 5 "${quick[@]}"
python run_suite.py --methods "sdgp[n=2,m=16,products=both,mode=unbiased|magnitude],sdgp[n=1,m=4]" "${quick[@]}"
python run_suite.py --methods "sdgp[n=2,m=4],sdgp[n=2,m=8],sdgp[n=1,m=8]" "${quick[@]}"
python run_suite.py export "$out" "$destination"
