#!/usr/bin/env bash
# Train vit_tiny on CIFAR-10 with AdamW, and the same with a plain loop of torch:
#     benchmarks/evidence/plain_vit.sh results/NAME [OUT [all]]
# Writes plain_vit.txt and plain_vit.json to the destination; OUT is the working folder (runs/plain_vit). By default, five
# seeds train on a subset in float32, which takes minutes on one core. With "all", three seeds train on all images in
# bfloat16, and the files are called plain_vit_all; that takes about an hour on two cores. Both have patches of 8 pixels.
# After a stop, the same command continues.
set -euo pipefail
destination=${1:?name the destination folder under results/}
out=${2:-runs/plain_vit}
recipe=(optimizer=adamw nesterov=false learning_rate=0.001 weight_decay=0.05 decay_norm_and_bias=false
    schedule=cosine peak_at=0 warmup_epochs=1 clip_norm=1 flip_tta=false)
size=(--seeds 5 --epochs 5 --dtype float32 --set=recipe.train_images=4000 --set=recipe.test_images=2000)
name=plain_vit
if [[ ${3:-} == all ]]; then
    size=(--seeds 3 --epochs 4 --dtype bfloat16)
    name=plain_vit_all
fi
python run_suite.py --methods dense --task cifar10 --model "vit_tiny[patch=8]" --preset quick --recipe resnet9 \
    --batch-size 64 "${size[@]}" "${recipe[@]/#/--set=recipe.}" --out "$out"
python -m benchmarks.evidence.plain_vit "$out" -o "$destination/$name"
