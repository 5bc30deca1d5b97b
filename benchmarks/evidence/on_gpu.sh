#!/usr/bin/env bash
# Everything that needs a GPU, on a machine that is rented for minutes and may be gone at any moment:
#     benchmarks/evidence/on_gpu.sh OUT [PART ...]
# All results are packed into OUT/on_gpu.tar.gz (below 16 MB): after every case of a benchmark, after every part, and
# every few seconds meanwhile. Parts, in order of worth (default: all):
#     bars            pruning kernels on one large tensor, against a copy: the bars (benchmarks/kernels/bars.py)
#     steps           whole training steps, eager; each convolution with a plan against torch's
#     steps-graph     the same steps as CUDA graphs
#     check           every way of pruning against the oracle
#     tests, tests-suite      the tests marked `gpu`, of kernels and of the rest
#     steps-compile   the same steps by torch.compile
#     patterns        convolutions that skip masked weights against cuDNN's, in fp32, TF32 and bf16
#     layers          pruning kernels on the layers of ResNet-9, -18 and -50
#     large           the other n:m on the large tensor, and torch.compile of the oracle
#     pruned          steps of networks that PruneTrain cut, the penalty's cost, union and gates
#     memcheck, racecheck     compute-sanitizer over `check` and over convolutions that skip weights
#     smoke, quick, table1, prunetrain, clicktrain     suites: the main job's presets, the columns and group sizes of
#                     SDGP's Table I, PruneTrain's ResNet-50 for 20 epochs, ClickTrain's VGG-11 by each backend
# A part takes at most PDT_PART_SECONDS (480), all of them together PDT_TOTAL_SECONDS (570). The same command goes on
# where it was cut off: with the first case, trial or part that is not there. Results of a commit are in
# runs/gpu-COMMIT; where that folder is gone, they are unpacked from data/on_gpu.tar.gz, an archive that was brought
# back and is carried along again. Archives have no networks (model.pt), without which a trial does not count as done: of a
# suite that was cut off, all trials run again on another machine. Carried along are, since such a machine has no network and no .git, the folder data and
# the file .commit.json, which `python -m benchmarks.evidence.carry` makes. Exit status: 0 all done, 1 some part is not, 2 wrong
# usage or no GPU.
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
least_seconds=20 # a part that has less is not begun

cd "$(dirname "$0")/../.." || exit 2
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
mkdir -p "$out" runs || exit 2
facts=$(python3 -m benchmarks.evidence.machine_facts --line) || exit 2
read -r commit missing <<<"$facts"
results=$PWD/runs/gpu-$commit
archive=$out/on_gpu.tar.gz
if [[ ! -d $results && -f data/on_gpu.tar.gz ]]; then
  # Aside first: files that are cut short, by a damaged archive or a kill, would be taken for results.
  rm -rf runs/.unpacked
  mkdir runs/.unpacked || exit 2
  if ! timeout 60 tar -xzf data/on_gpu.tar.gz -C runs/.unpacked 2>/dev/null; then
    echo "data/on_gpu.tar.gz is damaged and is not used; all parts begin"
  elif ! mv "runs/.unpacked/gpu-$commit" "$results" 2>/dev/null; then
    echo "data/on_gpu.tar.gz is not of commit $commit and is not used; all parts begin"
  fi
  rm -rf runs/.unpacked
fi
mkdir -p "$results/done" || exit 2
export PDT_RESULTS=$results PDT_ARCHIVE=$archive
pack() { timeout 60 python3 -m benchmarks.evidence.pack "$results" "$archive" || echo "== the results could not be packed"; }

[[ -z $missing ]] || echo "missing: $missing; parts that need them are left out"
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
[[ -d $PDT_DATA ]] || echo "no images: neither PDT_DATA nor a whole data/cifar10.tar.gz is there; suites will fail"
pack
packer() { while sleep "${PDT_PACK_SECONDS:-15}" && kill -0 $$; do pack; done; }
packer >/dev/null 2>&1 &
trap "kill $! 2>/dev/null" EXIT

not_done=()
# run PART MODULES COMMAND...: unless it is done, a module is missing, or the time is over.
run() {
  local name=$1 module status seconds=$((total_seconds - SECONDS))
  local modules=$2
  shift 2
  if [[ -e $results/done/$name ]]; then
    echo "== $name: done before"
    return
  fi
  for module in $modules; do
    if [[ " $missing " == *" $module "* ]]; then
      echo "== $name: left out, $module is missing"
      not_done+=("$name")
      return
    fi
  done
  if ((seconds < least_seconds)); then
    echo "== $name: not begun, the time is over"
    not_done+=("$name")
    return
  fi
  ((seconds <= part_seconds)) || seconds=$part_seconds
  echo "== $name: $*"
  # Into a file and not a pipe: what a part leaves running would keep a pipe open.
  timeout -k 5 "$seconds" "$@" >>"$results/$name.txt" 2>&1 </dev/null
  status=$?
  tail -n 20 "$results/$name.txt"
  if ((status == 0)); then
    touch "$results/done/$name"
  else
    not_done+=("$name")
    if ((status == 124 || status == 137)); then
      echo "== $name: stopped after $seconds s; the same command goes on"
    else
      echo "== $name: FAILED (exit status $status)"
    fi
  fi
  pack
}

pytest=(python3 -m pytest -rs -p no:cacheprovider)
threads=(env OMP_NUM_THREADS=8) # the tests' references are computed on the CPU
# kernels PART OPTION...: some of the kernel benchmarks, and the tables of all that there are.
kernels() {
  local name=$1 file found=()
  shift
  run "$name" "cupy pytest pytest_benchmark" "${pytest[@]}" benchmarks/kernels/bench_kernels.py -q --benchmark-columns=median \
    --device cuda --json "$results/kernels-$name.json" "$@"
  for file in "$results"/kernels-*.json; do [[ -s $file ]] && found+=("$file"); done
  if ((${#found[@]})); then timeout 60 python3 -m benchmarks.kernels.tables "${found[@]}" -o "$results" && pack; fi
}
steps() {
  run "$1" "" python3 -m benchmarks.steps.bench_step --device cuda --execution "$2" --json "$results/bench_step.json"
}
# suite PART OPTION...: a suite of trials; one that was cut off goes on.
suite() {
  local name=$1
  shift
  run "$name" "torchvision scipy pandas matplotlib seaborn pyarrow jinja2 rich sklearn psutil" \
    python3 run_suite.py "$@" --device cuda --out "$results/$name"
}
taps=("${pytest[@]}" tests/kernels/test_cuda_sparse_conv.py -m gpu -k small)
sanitizer() {
  # Without torch's caching allocator each tensor is an allocation of its own, whose end the tool knows.
  local tool=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$(python3 -m benchmarks.evidence.machine_facts --tool compute-sanitizer)"
    --error-exitcode 9 --tool "$1")
  run "$1" "compute-sanitizer cupy" "${tool[@]}" python3 -m benchmarks.kernels.check_kernels --device cuda --few
  run "$1-taps" "compute-sanitizer cupy pytest hypothesis" "${tool[@]}" "${taps[@]}"
}

for name in "${chosen[@]}"; do
  case $name in
    bars) kernels bars --shapes large --groups 2:4,4:8,8:16,16:32 --modes magnitude,random,sample_channel ;;
    steps) steps steps eager ;;
    steps-graph) steps steps-graph cuda_graph ;;
    steps-compile) steps steps-compile compile ;;
    check) run check cupy python3 -m benchmarks.kernels.check_kernels --device cuda ;;
    tests) run tests "cupy pytest hypothesis" "${threads[@]}" "${pytest[@]}" -v -m gpu tests/kernels ;;
    tests-suite)
      run tests-suite "cupy pytest hypothesis" "${threads[@]}" "${pytest[@]}" -v -m gpu tests \
        --ignore tests/kernels
      ;;
    patterns)
      run patterns cupy python3 -m benchmarks.steps.bench_patterns layers --device cuda --json "$results/bench_patterns.json"
      ;;
    layers)
      kernels layers --shapes resnet9,resnet18,resnet50 --groups 2:4,4:8,8:16 --dtypes float32,bfloat16 \
        --modes magnitude,random,sample_channel
      ;;
    large) kernels large --shapes large --groups 1:2,2:8,2:16 --compile ;;
    pruned) run pruned "" python3 -m benchmarks.steps.bench_pruned --device cuda --json "$results/bench_pruned.json" ;;
    memcheck | racecheck) sanitizer "$name" ;;
    smoke) suite smoke --methods dense,sdgp,prunetrain,clicktrain --task cifar10 --preset smoke ;;
    quick)
      suite quick --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain,clicktrain" --task cifar10 --preset quick \
        --seeds 3
      ;;
    table1) suite table1 reproduce sdgp-table1 --preset quick --parts columns,group-sizes ;;
    prunetrain)
      suite prunetrain --methods "dense,prunetrain[round_to=8,interval=2]" --task cifar10 --model resnet50_cifar \
        --preset quick --epochs 20 --seeds 2
      ;;
    clicktrain)
      suite clicktrain --task cifar10 --model vgg11_click --preset quick --epochs 12 --seeds 2 --methods \
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
