#!/usr/bin/env bash
# Run everything that needs a GPU, on a machine that may be switched off at any moment:
#     benchmarks/on_gpu.sh OUT [PART ...]
# Parts (default: all), the most important first: speed of pruning a large gradient, training steps, tests of kernels and
# of the suite, compiled steps, pruning of the layers of ResNet-9, compute-sanitizer (memcheck, racecheck), and suites of
# trials. After every part, OUT/on_gpu.tar.gz has the results in runs/gpu without networks. The same command continues
# with what is missing, on another machine after `tar -xzf on_gpu.tar.gz -C runs`; delete runs/gpu to begin anew. A part
# takes at most PDT_PART_SECONDS (480), all of them PDT_TOTAL_SECONDS (570). Exit status: 0 if all are done, 1 if some
# are not, 2 for wrong usage or without a GPU.
set -uo pipefail
parts=(large steps steps-graph tests tests-suite steps-compile layers memcheck racecheck smoke quick table1 prunetrain
  clicktrain)
refuse() { echo "on_gpu.sh: error: $1" >&2 && exit 2; }
(($#)) || refuse "name a folder for the archive: benchmarks/on_gpu.sh OUT [${parts[*]}]"
out=$(realpath -m "$1") chosen=("${@:2}") not_done=()
((${#chosen[@]})) || chosen=("${parts[@]}")
for name in "${chosen[@]}"; do
  [[ " ${parts[*]} " == *" $name "* ]] || refuse "no part is called '$name'; known: ${parts[*]}"
done
cd "$(dirname "$0")/.." && mkdir -p "$out" runs/gpu/done || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 PATH="$PATH:/usr/local/cuda/bin"
results=$PWD/runs/gpu
error=$(python3 -c 'import json, pathlib, sys; from suite.trials.provenance import collect
pathlib.Path(sys.argv[1]).write_text(json.dumps(collect("cuda"), indent=2) + "\n")' "$results/machine.json" 2>&1) ||
  refuse "no GPU can be used: ${error##*$'\n'}"

pack() { tar -czf "$out/.part" --exclude='*.pt' --exclude='.*' -C runs gpu && mv "$out/.part" "$out/on_gpu.tar.gz"; }
run() { # NAME COMMAND...: if its part is chosen and not done, and time is left
  local name=$1 status=0 seconds=$((${PDT_TOTAL_SECONDS:-570} - SECONDS)) most=${PDT_PART_SECONDS:-480}
  [[ " ${chosen[*]} " == *" $name "* ]] || return
  [[ ! -e $results/done/$name ]] || { echo "== $name: already done" && return; }
  ((seconds >= 20)) || { echo "== $name: not started, no time is left" && not_done+=("$name") && return; }
  echo "== $*"
  # To a file, not to a pipe: processes that a part leaves running would keep a pipe open.
  timeout -k 5 "$((seconds < most ? seconds : most))" "${@:2}" >>"$results/$name.txt" 2>&1 </dev/null || status=$?
  tail -n 20 "$results/$name.txt"
  case $status in
    0) touch "$results/done/$name" ;;
    124 | 137) echo "== $name: stopped by its time limit; the same command continues" && not_done+=("$name") ;;
    *) echo "== $name: FAILED (exit status $status)" && not_done+=("$name") ;;
  esac
  pack
}
pytest=(python3 -m pytest -rs -p no:cacheprovider)
tests=(env OMP_NUM_THREADS=8 "${pytest[@]}" -v -m gpu) # their references are computed on the CPU
bench=("${pytest[@]}" benchmarks/kernels/bench_kernels.py -q --benchmark-min-rounds 30 --benchmark-columns median)
kernels() { run "$1" "${bench[@]}" --benchmark-json "$results/kernels-$1.json" -k "$2"; }
masks="warmup=0,mixup=0,hard_prune=0"
steps() { # PART EXECUTION METHODS
  run "$1" python3 -m benchmarks.step --device cuda --execution "$2" --methods "$3" --model resnet9 --batch-size 512 \
    --dtypes float32 bfloat16 float16 --json "$results/$1.json"
}
suite() { run "$1" python3 run_suite.py "${@:2}" --device cuda --out "$results/$1"; }
cifar() { suite "$1" --task cifar10 --preset "${@:2}"; }

kernels large "large and (magnitude or random or sample_channel)"
steps steps eager "sdgp,prunetrain,clicktrain[$masks,backend=masked],clicktrain[$masks,backend=skipping]"
steps steps-graph cuda_graph sdgp
run tests "${tests[@]}" tests/kernels
run tests-suite "${tests[@]}" tests --ignore tests/kernels
steps steps-compile compile "sdgp,prunetrain"
kernels layers "not large"
for tool in memcheck racecheck; do # without torch's caching allocator, each tensor has bounds that the tool can check
  run "$tool" env PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 9 --tool "$tool" "${pytest[@]}" \
    tests/kernels/test_cuda_launch.py tests/kernels/test_cuda_sparse_conv.py -m gpu -k "oracle and (2-4 or 3-7) or small"
done
cifar smoke smoke --methods dense,sdgp,prunetrain,clicktrain
cifar quick quick --seeds 3 --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain,clicktrain"
suite table1 reproduce sdgp-table1 --preset quick --parts columns,group-sizes
cifar prunetrain quick --recipe resnet9 --model resnet50_cifar --epochs 20 --seeds 2 \
  --methods "dense,prunetrain[round_to=8,interval=2]"
cifar clicktrain quick --recipe resnet9 --model vgg11_click --epochs 12 --seeds 2 \
  --methods "dense,clicktrain[schedule=paper,backend=masked|skipping|auto],clicktrain[schedule=paper,scope=filter]"
timeout 60 python3 -m benchmarks.kernels.tables "$results"/kernels-*.json >"$results/kernels.txt" 2>&1
pack
((${#not_done[@]} == 0)) || { echo "not done: ${not_done[*]}" && exit 1; }
echo "all done: ${chosen[*]}"
