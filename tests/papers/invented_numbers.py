"""Invented published numbers, the quantities that are compared with them, and a page of both."""

from __future__ import annotations

import csv
import dataclasses
import io

from reports.papers import page as reproduced
from reports.papers.comparison import comparison, published_alone
from reports.papers.paper import Compared

NUMBERS = """
[sources.paper]
title = "A <b>paper</b> | with *stars*"
where = "nowhere"

[groups.t]
source = "paper"
place = "Table 1"
quantity = "accuracy"
unit = "%"
of = "measured"
notes = ["a <script>note</script>"]
conditions = { task = "cifar10", data_copy = "sample", model = "resnet9[width=0.25]", epochs = 5, batch_size = 128, dtype = "float32", execution = "eager", selection = "final epoch" }
values = { dense = 95.3, sdgp = 95.2 }

[groups.p]
source = "paper"
place = "Sec. 2"
quantity = "time saved"
unit = "%"
of = "modelled"
conditions = { hardware = "Synthetic" }
values = { sdgp = 16.6 }
"""  # noqa: E501


SDGP = "sdgp[n=2,m=4]"


def one(quantity, method=SDGP, **fields):
    return Compared(quantity=quantity, method=method, **fields)


def minus_dense(name):
    fields = {"against": "difference", "unit": "points", "published": "t/sdgp", "published_baseline": "t/dense"}
    return one(f"{name} minus dense", **fields)


COMPARED = (
    one("accuracy, dense", "dense", published="t/dense"),
    one("accuracy, pruned", published="t/sdgp"),
    minus_dense("pruned"),
    one("time saved", column="train_time_s", against="saving", published="p/sdgp"),
    one("training time", column="train_time_s", against="ratio", unit="×", scale=1.0),
    one("FLOPs left", column="train_flops_effective", over="train_flops_dense", kind="counted"),
)


def by_label(records):
    found = {}
    for trial in records.trials:
        label = "dense" if trial.text("method") == "dense" else SDGP
        found.setdefault(label, []).append(trial)
    return found


def lines(trials, numbers):
    return {one.quantity: comparison(one, "a", trials, numbers) for one in COMPARED}


def make(trials, numbers, **changed):
    content = reproduced.ReproductionPage(
        name="made-up",
        title="Made up",
        summary="A summary.",
        comparisons=(*lines(trials, numbers).values(), *published_alone(numbers, "p")),
        figure=None,
        reference=numbers.groups["t"],
        trials=tuple(trial for several in trials.values() for trial in several),
        alone=((numbers.groups["p"], "nowhere"),),
        notes=tuple(numbers.groups["t"].notes),
        provenance=("made up",),
    )
    return dataclasses.replace(content, **changed)


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))
