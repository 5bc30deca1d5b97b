"""The counted columns of short trials on digits are constants: no move of code may change one."""

import pytest
from small_trials import flushed, train_in_suite

from suite.trials.folder.records import read_record
from suite.trials.folder.table import SCHEMA
from suite.trials.folder.targets import COSTS

SMALL = {"train_images": 96, "test_images": 32, "batch_size": 32, "epochs": 4}
DENSE = {
    **dict.fromkeys((f"train_flops_{kind}" for kind in ("dense", "current", "effective", "executed")), 2581438464.0),
    **dict.fromkeys(("inference_flops", "inference_flops_dense", "inference_flops_effective"), 2253120.0),
    **dict.fromkeys(("params", "params_dense", "nonzero_params"), 36024),
}
CHANGES = {  # of what dense has; methods that remove nothing in four epochs have none
    "dense": {},
    "sdgp[backend=masked]": {"train_flops_effective": 2155978752.0},
    "sdgp[n=1,m=8,products=both,backend=masked]": {"train_flops_effective": 1092329472.0},
    "clicktrain[backend=masked]": {
        "train_flops_effective": 2277974016.0, "inference_flops_effective": 672576.0, "nonzero_params": 7800,
    },
}  # fmt: skip

ELSEWHERE = {"allreduce_bytes", "energy_j", "test_accuracy_one_view", "val_accuracy", "compile_time_s"}


@pytest.mark.parametrize("method", CHANGES)
def test_counted_columns_are_constants(tmp_path, method):
    folder = train_in_suite(tmp_path, flushed(method, model="resnet9[width=0.0625]", **SMALL))
    result = read_record(folder).result
    assert {name: result[name] for name in DENSE} == DENSE | CHANGES[method]
    of_result = {column.name for column in SCHEMA if not column.source and column.kind in ("measured", "counted")}
    assert of_result - {*COSTS} - result.keys() <= ELSEWHERE  # a new column has to be written
