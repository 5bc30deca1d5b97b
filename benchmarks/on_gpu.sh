#!/usr/bin/env bash
# Everything that needs a GPU, in one go: the tests marked `gpu`, the main job's smoke on the device, and the short recipe.
#     benchmarks/on_gpu.sh OUT
# OUT receives the test log and the suites' folders. The data root must hold CIFAR-10 (PDT_DATA), since a GPU machine may have no
# network.
set -euo pipefail
out=${1:?name a folder for what comes out}
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python3 -m pytest -m gpu -rs | tee "$out/tests.txt"
python3 run_suite.py --methods dense,sdgp,prunetrain --task cifar10 --preset smoke --device cuda --out "$out/smoke"
python3 run_suite.py --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain" --task cifar10 --preset quick --seeds 3 \
  --device cuda --out "$out/quick"
rm -f "$out"/*/trials/*/model.pt
