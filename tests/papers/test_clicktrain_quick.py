"""What a short ClickTrain costs in accuracy, eight times smaller; forty minutes on two cores."""

import json

import pytest

pytestmark = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]

CLICKTRAIN = "clicktrain[compression=8.1,allocation=erdos_renyi,warmup=0.15,hard_prune=0.3]"


def test_vgg11_stays_within_two_and_a_half_points_of_dense_at_an_eighth_of_its_weights(quick):
    out, table = quick(f"dense,{CLICKTRAIN}", "vgg11_click[width=0.5]", "2")
    table = table.sort_values("seed")
    dense, pruned = (table[table["method"] == name] for name in ("dense", "clicktrain"))
    assert ((dense["test_accuracy"].to_numpy() - pruned["test_accuracy"].to_numpy()) <= 0.025).all()
    for trial in pruned["trial_id"]:
        *_, last = (out / "trials" / trial / "epochs.jsonl").read_text().splitlines()
        assert json.loads(last)["method"]["compression"] >= 8
