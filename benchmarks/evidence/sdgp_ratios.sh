#!/usr/bin/env bash
# Measure the accuracy of SDGP at higher ratios than the published default, and export the results to results/:
#     benchmarks/evidence/sdgp_ratios.sh results/NAME [OUT]
# Preset quick, recipe resnet9, three seeds, float32 (in which dense steps are faster on CPUs without matrix units for
# bfloat16); OUT is the working folder (runs/sdgp-ratios). Dense training for fewer epochs is what a method has to beat at
# equal cost. After a stop, the same command continues; what decides comes first.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/sdgp-ratios}
quick=(--task cifar10 --preset quick --recipe resnet9 --seeds 3 --dtype float32 --out "$out")
both="sdgp[n=2,m=16,products=both]"
python run_suite.py --methods "dense,sdgp[n=2,m=16]" "${quick[@]}"
python run_suite.py --methods dense --epochs 6 "${quick[@]}"
python run_suite.py --methods dense --epochs 4 "${quick[@]}"
python run_suite.py --methods "${both/]/,mode=unbiased]},sdgp[n=1,m=4]" "${quick[@]}"
python run_suite.py --methods "sdgp[n=2,m=4],sdgp[n=2,m=8],sdgp[n=1,m=8],$both,${both/]/,mode=magnitude]}" "${quick[@]}"
python run_suite.py time "$out" # refuses a busy machine
python -m benchmarks.evidence.normalization_offsets "$out" > "$out/normalization_offsets.txt"
python run_suite.py export "$out" "$destination"
cp "$out/normalization_offsets.txt" "$destination"
