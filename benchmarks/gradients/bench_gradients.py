"""Times of gradients that skip pruned channels, by layer of a network, relative to torch's dense gradients.

    python -m benchmarks.gradients.bench_gradients [--model resnet9] [--ratios 1:4,2:16] [--products dgrad,wgrad]
        [--dtype float32,bfloat16] [--mode rescaled] [--batch 128] [--layers NAME,...] [--pairs 9] [--seconds 30]
        [--json FILE]

The time of a gradient that skips (`skip`) includes pruning and compression (`compress_nm`) and the product
(`kernels/compressed`). It is compared with torch's product of the gradient that is not pruned (`dense`), and with
`prune_nm` and torch's product of its result (`masked`). All of them run in alternation, in all dtypes and ratios. The
headline ratio of a layer is that in the dtype in which its dense product is faster. A product is timed only if its
result agrees with torch's product of what `prune_nm` keeps: the largest difference is at most 1e-4 of the largest
element in float32, and 1e-2 in bfloat16.

The bound of a product is the larger of two times: its multiply-adds at the rate of `torch.mm` of two square matrices
(for bfloat16 in the faster of both dtypes), and the bytes that it must read and write at the rate of a copy of the
layer's size. The data gradient reads kept values, their channels and W and writes dA; the weight gradient reads A and
writes dW. The share of the bound that is reached excludes compression.

Models that torchvision has too receive 32 images of 224x224 pixels, others 128 images of 32x32 pixels (--batch). Only
layers with a data gradient are measured, each shape once.

With --json each layer is saved as soon as it is measured, and the same command continues with the missing ones.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.gradients.bounds import SIDE, peak
from benchmarks.gradients.layers import Network, networks
from benchmarks.gradients.measure import FEWEST_PAIRS, WrongProduct, measure, name_of
from benchmarks.gradients.tables import HEAD, lines, summary
from benchmarks.partial_results import OtherRunError, PartialResults, kept
from benchmarks.trial_environment import enter_trial_environment
from kernels import PruneRule
from kernels.compressed.dispatch import available
from suite.errors import UsageError, nearest

PRODUCTS = ("dgrad", "wgrad")
PEAKS = "peaks, multiply-adds per s"
DTYPES = {name_of(dtype): dtype for dtype in (torch.float32, torch.bfloat16)}
MODES = {
    "rescaled": ("magnitude", "sample_channel"),
    "magnitude": ("magnitude", "none"),
    "random": ("random", "none"),
    "unbiased": ("unbiased", "none"),
}


def names_in(text: str, known: Sequence[str], option: str) -> list[str]:
    """Return the names of a comma-separated list.

    Raises:
        UsageError: A name is unknown.
    """
    names = text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name}{nearest(name, known)}")
    return names


def rules_of(text: str, mode: str) -> list[PruneRule]:
    """Return the rules of a list such as `1:4,2:16`.

    Raises:
        UsageError: A ratio is not n:m, or out of range.
    """
    rules = []
    for ratio in text.split(","):
        n, _, m = ratio.partition(":")
        if not (n.isdecimal() and m.isdecimal()):
            raise UsageError(f"--ratios {ratio}: expected n:m, such as 2:16")
        try:
            rules.append(PruneRule(int(n), int(m), *MODES[mode]))  # type: ignore[arg-type]
        except ValueError as error:
            raise UsageError(f"--ratios {ratio}: {error}") from error
    return rules


def measure_network(
    network: Network, product: str, rules: Sequence[PruneRule], chosen: argparse.Namespace, found: PartialResults
) -> list[str]:
    """Measure and print the layers of a network; return what was wrong."""
    wrong, rows = [], []
    dtypes = [DTYPES[name] for name in chosen.dtype]
    print(f"\n{network.name}, batch {network.batch}, {product}\n{HEAD}", flush=True)
    for shape, names in network.layers.items():
        keys = {rule: f"{network.name}, batch {network.batch}: {shape}: {product} {rule.n}:{rule.m}" for rule in rules}
        missing = [rule for rule in rules if keys[rule] not in found]
        try:
            limits = (found[PEAKS], chosen.pairs, chosen.seconds)
            new = measure(product, shape, network.batch, missing, dtypes, *limits) if missing else []
        except WrongProduct as error:
            wrong.append(f"{names[0]}: {error}")
            print(f"WRONG {wrong[-1]}", flush=True)
            continue
        for rule, row in zip(missing, new, strict=True):
            found[PEAKS] = row["peaks"]
            found[keys[rule]] = {"model": network.name, "layers": names, "label": str(shape), **row}
        for rule in rules:
            rows.append(found[keys[rule]])
            print("\n".join(lines(rows[-1])), flush=True)
    if rows:
        print(summary(rows), flush=True)
    return wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 1 if a product is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gradients.bench_gradients", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--model", default="resnet9,resnet9[width=0.25]", help="comma list of models (resnet9,resnet9[width=0.25])"
    )
    parser.add_argument("--ratios", default="1:4,2:16", help="comma list of n:m (1:4,2:16)")
    parser.add_argument("--products", default=",".join(PRODUCTS), help=f"comma list of {', '.join(PRODUCTS)} (both)")
    parser.add_argument("--dtype", default=",".join(DTYPES), help=f"comma list of {', '.join(DTYPES)} (both)")
    parser.add_argument("--mode", default="rescaled", help=f"{', '.join(MODES)} (rescaled: by sample_channel)")
    parser.add_argument("--batch", type=int, help="number of images (128; 32 of 224x224 pixels)")
    parser.add_argument("--layers", default="", help="comma list of parts of layer names (all layers)")
    parser.add_argument("--pairs", type=int, default=9, help="most interleaved rounds per layer (9)")
    parser.add_argument(
        "--seconds", type=float, default=30.0,
        help=f"time after which the rounds of a layer and product end, but not before the {FEWEST_PAIRS}rd (30)",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, help="file for the results; results are added to an existing file")
    chosen = parser.parse_args(arguments)
    if chosen.pairs < FEWEST_PAIRS:
        parser.error(f"--pairs {chosen.pairs}: at least {FEWEST_PAIRS}")
    if chosen.batch is not None and chosen.batch < 1:
        parser.error(f"--batch {chosen.batch}: at least 1")
    if not available(torch.device("cpu")):
        parser.error("no kernels that skip channels: no C++ compiler is found, or PDT_CPU_KERNEL=0")
    threads = torch.get_num_threads()
    facts = {
        "torch": torch.__version__, "machine": platform.machine(), "threads": threads, "pairs": chosen.pairs,
        "seconds": chosen.seconds, "mode": chosen.mode, "dtype": chosen.dtype, "layers": chosen.layers,
    }  # fmt: skip
    try:
        products = names_in(chosen.products, PRODUCTS, "--products")
        chosen.dtype = names_in(chosen.dtype, [*DTYPES], "--dtype")
        names_in(chosen.mode, [*MODES], "--mode")
        rules = rules_of(chosen.ratios, chosen.mode)
        all_networks = list(networks(chosen.model, chosen.batch, [part for part in chosen.layers.split(",") if part]))
        found = kept(chosen.json, facts, "found")
    except (OtherRunError, UsageError) as error:
        parser.error(str(error))
    print(f"torch {torch.__version__}, {threads} threads, load {os.getloadavg()[0]:.2f}; up to {chosen.pairs} pairs; "
          f"pruning: {chosen.mode}")  # fmt: skip
    if PEAKS not in found:
        found[PEAKS] = {name: peak(dtype) for name, dtype in DTYPES.items()}
    rates = ", ".join(f"{name} {2e-9 * rate:.0f} GFLOP/s" for name, rate in found[PEAKS].items())
    print(f"peak: torch.mm of {SIDE}x{SIDE} matrices, {rates}")
    wrong: list[str] = []
    for network in all_networks:
        for product in products:
            wrong += measure_network(network, product, rules, chosen, found)
    for message in wrong:
        print(f"WRONG {message}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    enter_trial_environment()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.exit(main())
