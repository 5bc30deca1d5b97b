#!/usr/bin/env bash
# Everything that needs a GPU, in order of worth:
#     benchmarks/on_gpu.sh OUT [STAGE ...]
# Stages (default: all, in this order):
#     tests       the tests marked `gpu`, and every way of pruning against the oracle
#     kernels     pruning kernels against copies and alternatives: JSON, kernels.md, figures/
#     sanitizer   compute-sanitizer's memcheck and racecheck over every way of pruning and over convolutions that skip
#                 weights, where the tool is found
#     steps       whole training steps, eager, compiled and as CUDA graphs
#     patterns    convolutions that skip masked weights against cuDNN's, in fp32, TF32 and bf16
#     pruned      steps of networks that PruneTrain cut, the penalty's cost, union and gates
#     suites      the main job's smoke and quick, the columns and group sizes of SDGP's Table I, and PruneTrain's CIFAR
#                 ResNet-50 for 20 epochs by the recipe of quick, dense and pruned; ClickTrain's VGG-11 by each backend
# It may be cut off at any time: the same command goes on with the first step that is not done (OUT/done). What a step prints is
# in OUT/STEP.txt, the machine in OUT/machine.json. PDT_DATA names the data root, which must hold CIFAR-10 for all suites but
# smoke, since a GPU machine may have no network. Exit status: 0 all done, 1 some step failed, 2 wrong usage or no GPU.
set -uo pipefail

stages=(tests kernels sanitizer steps patterns pruned suites)
if (($# == 0)); then
  echo "on_gpu.sh: error: name a folder for what comes out: benchmarks/on_gpu.sh OUT [${stages[*]}]" >&2
  exit 2
fi
out=$(realpath -m "$1")
shift
chosen=("$@")
if (($# == 0)); then chosen=("${stages[@]}"); fi
for stage in "${chosen[@]}"; do
  if [[ " ${stages[*]} " != *" $stage "* ]]; then
    echo "on_gpu.sh: error: no stage is called '$stage'; known: ${stages[*]}" >&2
    exit 2
  fi
done

cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=()

missing=" $(python3 benchmarks/machine_facts.py --missing) "
if [[ $missing != "  " ]]; then echo "missing modules:${missing% }; steps that need them are left out"; fi
python3 benchmarks/machine_facts.py "$out/machine.json" || exit 2
mkdir -p "$out/done" || exit 2

# lacks STEP MODULE...: whether a module that the step needs is missing; says so.
lacks() {
  local name=$1 module
  shift
  for module in "$@"; do
    if [[ $missing == *" $module "* ]]; then
      echo "== $name: left out, no module $module"
      failed+=("$name")
      return 0
    fi
  done
  return 1
}

# step STEP COMMAND...: unless it is done already.
step() {
  local name=$1
  shift
  if [[ -e $out/done/$name ]]; then
    echo "== $name: done before"
    return 0
  fi
  echo "== $name: $*"
  if "$@" 2>&1 | tee "$out/$name.txt"; then
    touch "$out/done/$name"
  else
    echo "== $name: FAILED"
    failed+=("$name")
    return 1
  fi
}

tests() {
  lacks tests cupy pytest hypothesis && return
  step check python3 benchmarks/check_kernels.py --device cuda
  step tests python3 -m pytest -m gpu -rs -p no:cacheprovider
}

# bench PART OPTION...: a part of the kernel benchmarks, and the tables of all parts so far.
bench() {
  local part=$1
  shift
  step "kernels-$part" python3 -m pytest benchmarks/bench_kernels.py -q -p no:cacheprovider --benchmark-columns=median \
    --device cuda --benchmark-json "$out/kernels-$part.json" "$@"
  local file found=()
  # A part that was cut off leaves an empty file.
  for file in "$out"/kernels-*.json; do [[ -s $file ]] && found+=("$file"); done
  if ((${#found[@]})); then python3 benchmarks/kernel_tables.py "${found[@]}" -o "$out" || failed+=("tables-$part"); fi
}

kernels() {
  lacks kernels cupy pytest pytest_benchmark && return
  local layers=(--dtypes float32,bfloat16 --groups 2:4,4:8,8:16 --modes magnitude,random,sample_channel)
  bench large-2-4 --shapes large --groups 2:4 --compile
  bench large --shapes large --groups 1:2,4:8,8:16,16:32,2:8,2:16
  bench resnet9 --shapes resnet9 "${layers[@]}"
  bench imagenet --shapes resnet18,resnet50 "${layers[@]}"
}

sanitizer() {
  local tool
  tool=$(command -v compute-sanitizer || command -v /usr/local/cuda/bin/compute-sanitizer)
  if [[ -z $tool ]]; then
    echo "== sanitizer: left out, compute-sanitizer is neither on the PATH nor in /usr/local/cuda/bin"
    failed+=(sanitizer)
    return
  fi
  # Without torch's caching allocator each tensor is an allocation of its own, whose end the tool knows.
  local check=(env PYTORCH_NO_CUDA_MEMORY_CACHING=1 "$tool" --error-exitcode 9)
  step memcheck "${check[@]}" --tool memcheck python3 benchmarks/check_kernels.py --device cuda
  step racecheck "${check[@]}" --tool racecheck python3 benchmarks/check_kernels.py --device cuda
  lacks patterns-memcheck cupy pytest hypothesis && return
  local patterns=(python3 -m pytest -p no:cacheprovider tests/kernels/test_cuda_tap_conv.py -m gpu -k small)
  step patterns-memcheck "${check[@]}" --tool memcheck "${patterns[@]}"
  step patterns-racecheck "${check[@]}" --tool racecheck "${patterns[@]}"
}

steps() {
  step steps python3 benchmarks/bench_step.py --device cuda --execution eager,compile,cuda_graph --json "$out/bench_step.json"
}

patterns() {
  lacks patterns cupy && return
  step patterns python3 benchmarks/bench_patterns.py layers --device cuda --json "$out/bench_patterns.json"
}

pruned() {
  step pruned python3 benchmarks/bench_pruned.py --device cuda --json "$out/bench_pruned.json"
}

suites() {
  step smoke python3 run_suite.py --methods dense,sdgp,prunetrain,clicktrain --task cifar10 --preset smoke --device cuda \
    --out "$out/smoke"
  step quick python3 run_suite.py --methods "dense,sdgp[mode=rescaled|magnitude],prunetrain,clicktrain" --task cifar10 \
    --preset quick --seeds 3 --device cuda --out "$out/quick"
  step sdgp-table1 python3 run_suite.py reproduce sdgp-table1 --preset quick --device cuda --parts columns,group-sizes \
    --out "$out/sdgp-table1"
  step prunetrain python3 run_suite.py --methods "dense,prunetrain[round_to=8,interval=2]" --task cifar10 --model resnet50_cifar \
    --preset quick --epochs 20 --seeds 2 --device cuda --out "$out/prunetrain"
  step clicktrain python3 run_suite.py \
    --methods "dense,clicktrain[schedule=paper,backend=masked|compact|auto],clicktrain[schedule=paper,scope=filter]" \
    --task cifar10 --model vgg11_click --preset quick --epochs 12 --seeds 2 --device cuda --out "$out/clicktrain"
  # Of what is done: a suite that goes on needs the models of its finished trials.
  local name
  for name in smoke quick sdgp-table1 prunetrain clicktrain; do
    if [[ -e $out/done/$name ]]; then rm -f "$out/$name"/trials/*/model.pt; fi
  done
}

for stage in "${chosen[@]}"; do "$stage"; done
if ((${#failed[@]})); then
  echo "not done: ${failed[*]}"
  exit 1
fi
echo "all done: ${chosen[*]}"
