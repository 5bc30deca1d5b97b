#!/usr/bin/env bash
# Train vit_tiny on a subset of CIFAR-10 with AdamW, and the same with a plain loop of torch, five seeds each:
#     benchmarks/evidence/plain_vit.sh results/NAME [OUT]
# Writes plain_vit.txt and plain_vit.json to the destination; OUT is the working folder (runs/plain_vit). The subset and
# patches of 8 pixels are for a training of minutes on one core. After a stop, the same command continues.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/plain_vit}
recipe=(optimizer=adamw nesterov=false learning_rate=0.001 weight_decay=0.05 decay_norm_and_bias=false
    schedule=cosine peak_at=0 warmup_epochs=1 clip_norm=1 flip_tta=false train_images=4000 test_images=2000)
python run_suite.py --methods dense --task cifar10 --model "vit_tiny[patch=8]" --preset quick --seeds 5 --epochs 5 \
    --batch-size 64 --dtype float32 "${recipe[@]/#/--set=recipe.}" --out "$out"
python -m benchmarks.evidence.plain_vit "$out" -o "$destination/plain_vit"
