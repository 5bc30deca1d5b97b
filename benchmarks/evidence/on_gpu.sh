#!/usr/bin/env bash
# Run everything that needs a GPU, on a rented machine that may be switched off at any moment:
#     benchmarks/evidence/on_gpu.sh OUT [PART ...]
# All results are packed into OUT/on_gpu.tar.gz (below 16 MB) after every part, and every few seconds during a part.
# Parts, the most important first (default: all):
#     bars            pruning kernels on one large tensor, compared with a copy (benchmarks/kernels/bars.py)
#     steps           complete training steps, eager; each convolution with a plan compared with torch's
#     steps-graph     the same steps as CUDA graphs
#     check           every way of pruning compared with the reference
#     tests, tests-suite      tests marked `gpu`: those of the kernels, and all others
#     steps-compile   the same steps with torch.compile
#     patterns        convolutions that skip masked weights compared with cuDNN's, in fp32, TF32 and bf16
#     layers          pruning kernels on the layers of ResNet-9, -18 and -50
#     large           the other n:m on the large tensor, and torch.compile of the reference
#     pruned          steps of networks cut by PruneTrain, the cost of the penalty, union and gating
#     memcheck, racecheck     compute-sanitizer on `check` and on convolutions that skip weights
#     smoke, quick, table1, prunetrain, clicktrain     suites: the main job with two presets, the columns and group
#                     sizes of SDGP's Table I, PruneTrain's ResNet-50 for 20 epochs, ClickTrain's VGG-11 with each backend
# A part takes at most PDT_PART_SECONDS (480), all parts together PDT_TOTAL_SECONDS (570). After an interruption, the same
# command continues with the first case, trial or part that is missing. The results of a commit are in runs/gpu-COMMIT; if
# that folder does not exist, they are unpacked from data/on_gpu.tar.gz, the archive of an earlier machine. Archives have
# no trained networks (model.pt), without which a trial is not finished: on another machine, all trials of an interrupted
# suite run again. Such a machine has no network access and no .git, so the folder data (images and Python
# packages) and the file .commit.json must be copied to it; `python -m benchmarks.evidence.carry` creates them. Exit status: 0 if all parts are done, 1 if some are
# not, 2 for wrong usage or without a GPU.
set -uo pipefail

parts=(bars steps steps-graph check tests tests-suite steps-compile patterns layers large pruned memcheck racecheck
  smoke quick table1 prunetrain clicktrain)
usage() {
  echo "on_gpu.sh: error: $1" >&2
  exit 2
}
(($#)) || usage "name a folder for the archive: benchmarks/evidence/on_gpu.sh OUT [${parts[*]}]"
out=$(realpath -m "$1")
shift
for name in "$@"; do
  [[ " ${parts[*]} " == *" $name "* ]] || usage "no part is called '$name'; known: ${parts[*]}"
done
chosen=("$@")
(($#)) || chosen=("${parts[@]}")
part_seconds=${PDT_PART_SECONDS:-480}
total_seconds=${PDT_TOTAL_SECONDS:-570}
least_seconds=20 # a part with less time left is not started

cd "$(dirname "$0")/../.." || exit 2
export PYTHONPATH="$PWD:$PWD/data/packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" runs || exit 2
facts=$(python3 -m benchmarks.evidence.machine_facts --line) || exit 2
read -r commit missing <<<"$facts"
results=$PWD/runs/gpu-$commit
archive=$out/on_gpu.tar.gz
if [[ ! -d $results && -f data/on_gpu.tar.gz ]]; then
  # Unpack into a temporary folder, so that truncated files of a damaged archive are never used as results.
  rm -rf runs/.unpacked
  mkdir runs/.unpacked || exit 2
  if ! timeout 60 tar -xzf data/on_gpu.tar.gz -C runs/.unpacked 2>/dev/null; then
    echo "data/on_gpu.tar.gz is damaged and is ignored; all parts start from the beginning"
  elif ! mv "runs/.unpacked/gpu-$commit" "$results" 2>/dev/null; then
    echo "data/on_gpu.tar.gz is not of commit $commit and is ignored; all parts start from the beginning"
  fi
  rm -rf runs/.unpacked
fi
mkdir -p "$results/done" || exit 2
export PDT_RESULTS=$results PDT_ARCHIVE=$archive
pack() { timeout 60 python3 -m benchmarks.evidence.pack "$results" "$archive" || echo "== the results could not be packed"; }

[[ -z $missing ]] || echo "missing: $missing; parts that need them are skipped"
[[ -f $results/machine.json ]] || python3 -m benchmarks.evidence.machine_facts "$results/machine.json" || exit 2
if [[ -z ${PDT_DATA:-} ]]; then
  export PDT_DATA=$PWD/runs/data
  if [[ -f data/cifar10.tar.gz && ! -e $PDT_DATA/unpacked ]]; then
    mkdir -p "$PDT_DATA"
    if timeout 120 tar -xzf data/cifar10.tar.gz -C "$PDT_DATA"; then
      touch "$PDT_DATA/unpacked"
    else
      rm -rf "$PDT_DATA"
      echo "data/cifar10.tar.gz cannot be unpacked"
    fi
  fi
fi
[[ -d $PDT_DATA ]] || echo "no images: neither PDT_DATA nor an intact data/cifar10.tar.gz exists; suites will fail"
pack
packer() { while sleep "${PDT_PACK_SECONDS:-15}" && kill -0 $$; do pack; done; }
packer >/dev/null 2>&1 &
trap "kill $! 2>/dev/null" EXIT

not_done=()
# run PART MODULES COMMAND...: run a part unless it is done, a module is missing, or no time is left.
run() {
  local name=$1 module status seconds=$((total_seconds - SECONDS))
  local modules=$2
  shift 2
  if [[ -e $results/done/$name ]]; then
    echo "== $name: already done"
    return
  fi
  for module in $modules; do
    if [[ " $missing " == *" $module "* ]]; then
      echo "== $name: skipped, $module is missing"
      not_done+=("$name")
      return
    fi
  done
  if ((seconds < least_seconds)); then
    echo "== $name: not started, no time is left"
    not_done+=("$name")
    return
  fi
  ((seconds <= part_seconds)) || seconds=$part_seconds
  echo "== $name: $*"
  # Write to a file, not to a pipe: processes that a part leaves running would keep a pipe open.
  timeout -k 5 "$seconds" "$@" >>"$results/$name.txt" 2>&1 </dev/null
  status=$?
  tail -n 20 "$results/$name.txt"
  if ((status == 0)); then
    touch "$results/done/$name"
  else
    not_done+=("$name")
    if ((status == 124 || status == 137)); then
      echo "== $name: stopped after $seconds s; the same command continues"
    else
      echo "== $name: FAILED (exit status $status)"
    fi
  fi
  pack
}

project="pydantic annotated_types filelock docstring_parser" # every part that imports suite needs them
pytest=(python3 -m pytest -rs -p no:cacheprovider)
threads=(env OMP_NUM_THREADS=8) # the tests' references are computed on the CPU
# kernels PART OPTION...: run some kernel benchmarks, and write the tables of all existing results.
kernels() {
  local name=$1 file found=()
  shift
  run "$name" "$project cupy pytest pytest_benchmark" "${pytest[@]}" benchmarks/kernels/bench_kernels.py -q --benchmark-columns=median \
    --device cuda --json "$results/kernels-$name.json" "$@"
  for file in "$results"/kernels-*.json; do [[ -s $file ]] && found+=("$file"); done
  if ((${#found[@]})); then timeout 60 python3 -m benchmarks.kernels.tables "${found[@]}" -o "$results" && pack; fi
}
steps() {
  run "$1" "$project" python3 -m benchmarks.steps.bench_step --device cuda --execution "$2" --json "$results/bench_step.json"
}
# suite PART OPTION...: run a suite of trials, or continue one that was interrupted.
suite() {
  local name=$1
  shift
  run "$name" "$project torchvision scipy matplotlib pyarrow jinja2 rich psutil" \
    python3 run_suite.py "$@" --device cuda --out "$results/$name"
}
taps=("${pytest[@]}" tests/kernels/test_cuda_sparse_conv.py -m gpu -k small)
sanitizer() {
  # Without torch's caching allocator each tensor is a separate allocation, whose bounds the tool can check.
  local tool=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$(python3 -m benchmarks.evidence.machine_facts --tool compute-sanitizer)"
    --error-exitcode 9 --tool "$1")
  run "$1" "$project compute-sanitizer cupy" "${tool[@]}" python3 -m benchmarks.kernels.check_kernels --device cuda --few
  run "$1-taps" "$project compute-sanitizer cupy pytest hypothesis" "${tool[@]}" "${taps[@]}"
}

for name in "${chosen[@]}"; do
  case $name in
    bars) kernels bars --shapes large --groups 2:4,4:8,8:16,16:32 --modes magnitude,random,sample_channel ;;
    steps) steps steps eager ;;
    steps-graph) steps steps-graph cuda_graph ;;
    steps-compile) steps steps-compile compile ;;
    check) run check "$project cupy" python3 -m benchmarks.kernels.check_kernels --device cuda ;;
    tests) run tests "$project cupy pytest hypothesis" "${threads[@]}" "${pytest[@]}" -v -m gpu tests/kernels ;;
    tests-suite)
      run tests-suite "$project cupy pandas pytest hypothesis" "${threads[@]}" "${pytest[@]}" -v -m gpu tests \
        --ignore tests/kernels
      ;;
    patterns)
      run patterns "$project cupy" python3 -m benchmarks.steps.bench_patterns layers --device cuda --json "$results/bench_patterns.json"
      ;;
    layers)
      kernels layers --shapes resnet9,resnet18,resnet50 --groups 2:4,4:8,8:16 --dtypes float32,bfloat16 \
        --modes magnitude,random,sample_channel
      ;;
    large) kernels large --shapes large --groups 1:2,2:8,2:16 --compile ;;
    pruned) run pruned "$project" python3 -m benchmarks.steps.bench_pruned --device cuda --json "$results/bench_pruned.json" ;;
    memcheck | racecheck) sanitizer "$name" ;;
    smoke) suite smoke --methods dense,sdgp,prunetrain,clicktrain --task cifar10 --preset smoke ;;
    quick)
      suite quick --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain,clicktrain" --task cifar10 --preset quick \
        --seeds 3
      ;;
    table1) suite table1 reproduce sdgp-table1 --preset quick --parts columns,group-sizes ;;
    prunetrain)
      suite prunetrain --methods "dense,prunetrain[round_to=8,interval=2]" --task cifar10 --model resnet50_cifar \
        --preset quick --recipe resnet9 --epochs 20 --seeds 2
      ;;
    clicktrain)
      suite clicktrain --task cifar10 --model vgg11_click --preset quick --recipe resnet9 --epochs 12 --seeds 2 --methods \
        "dense,clicktrain[schedule=paper,backend=masked|skipping|auto],clicktrain[schedule=paper,scope=filter]"
      ;;
  esac
done
pack
if ((${#not_done[@]})); then
  echo "not done: ${not_done[*]}"
  exit 1
fi
echo "all done: ${chosen[*]}"
