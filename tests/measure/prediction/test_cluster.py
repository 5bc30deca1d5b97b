"""The description of a cluster, and the communication of a data-parallel trial on it."""

import dataclasses

import pytest
from small_trials import spec

from suite.engine.cost.ring import all_reduce_seconds, sent_bytes
from suite.errors import UsageError
from suite.measure.prediction.cluster import Cluster, check_device, check_trial, communication, read_cluster
from suite.measure.prediction.estimate import Prediction

PREDICTION = Prediction(
    epochs=2,
    steps=20,
    train_s=10.0,
    eval_s=1.0,
    other_s=1.0,
    flops_dense=1.0,
    flops_executed=1.0,
    memory_bytes=1,
    payload=((1_000_000, 15), (500_000, 5)),
    is_bound=False,
    probed_epochs=2,
)


def test_a_cluster_is_read_with_its_units():
    assert read_cluster("nodes=16,gpus=8,link=400Gb") == Cluster(16, gpus=8, link=50e9)
    assert read_cluster(" nodes = 2, cpus=64, link=1.5GB/s, local=10GB, latency=5us") == Cluster(
        2, cpus=64, link=1.5e9, local=10e9, latency=pytest.approx(5e-6)
    )
    assert read_cluster("nodes=1,cpus=8").devices(4) == 2
    assert read_cluster("nodes=1,gpus=8").devices(4) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nods=2,gpus=1", "did you mean 'nodes'"),
        ("nodes=2", "either gpus or cpus"),
        ("nodes=2,gpus=1,cpus=1", "either gpus or cpus"),
        ("gpus=1", "give nodes"),
        ("nodes=2,nodes=3,gpus=1", "nodes is given twice"),
        ("nodes=,gpus=1", "nodes has no value"),
        ("nodes=0,gpus=1", "expected an integer"),
        ("nodes=two,gpus=1", "expected an integer"),
        ("nodes=2,gpus=1,link=400", "a number with a unit: Gb"),
        ("nodes=2,gpus=1,link=400MB", "a number with a unit: Gb"),
        ("nodes=2,gpus=1,link=0Gb", "a number with a unit: Gb"),
        ("nodes=2,gpus=1,latency=5", "a number with a unit: us"),
        (f"nodes=2,gpus=1,latency={'9' * 400}s", "a number with a unit: us"),
        ("", "no key is called ''"),
    ],
)
def test_mistakes_are_named_in_one_line(text, words):
    with pytest.raises(UsageError, match=words) as raised:
        read_cluster(text)
    assert "\n" not in str(raised.value)


def test_the_probe_must_run_on_the_kind_of_device_that_the_cluster_has():
    check_device(Cluster(1, cpus=2), "cpu")
    check_device(Cluster(1, gpus=2), "cuda")
    with pytest.raises(UsageError, match="give cpus=N, or probe with --device cuda"):
        check_device(Cluster(1, gpus=2), "cpu")
    with pytest.raises(UsageError, match="give gpus=N, or probe with --device cpu"):
        check_device(Cluster(1, cpus=2), "cuda")


def parallel(processes):
    return dataclasses.replace(spec("dense"), processes=processes)


def test_each_stage_sends_the_gradients_of_its_network():
    cluster = Cluster(4, cpus=2, link=1e9, local=4e9, latency=0.0)
    found = communication(parallel(4), PREDICTION, cluster, threads=1)
    assert found.payload_bytes == 15 * 4e6 + 5 * 2e6
    assert found.sent_bytes == 15 * sent_bytes(4e6, 4) + 5 * sent_bytes(2e6, 4)
    assert found.seconds == pytest.approx(found.sent_bytes / 1e9)
    inside = communication(parallel(2), PREDICTION, cluster, threads=1)
    assert inside.seconds == pytest.approx(inside.sent_bytes / 4e9)
    slow = dataclasses.replace(cluster, latency=1e-3)
    assert communication(parallel(4), PREDICTION, slow, 1).seconds == pytest.approx(
        15 * all_reduce_seconds(4e6, 4, 1e9, 1e-3) + 5 * all_reduce_seconds(2e6, 4, 1e9, 1e-3)
    )


def test_one_rank_sends_nothing_and_several_need_a_bandwidth():
    assert communication(parallel(1), PREDICTION, Cluster(1, cpus=1), 1).seconds == 0
    check_trial(Cluster(2, cpus=1), parallel(1), 1)
    check_trial(Cluster(2, cpus=1, link=1e9), parallel(2), 1)
    check_trial(Cluster(2, cpus=2, local=1e9), parallel(2), 1)
    for lacking in (Cluster(2, cpus=1), Cluster(2, cpus=1, local=1e9)):
        with pytest.raises(UsageError, match="add link=400Gb"):
            check_trial(lacking, parallel(2), 1)


def test_a_trial_must_fit_on_the_cluster():
    with pytest.raises(
        UsageError, match=r"a node has 1 core\(s\), and a rank here has 2 threads; set OMP_NUM_THREADS=1"
    ):
        check_trial(Cluster(2, cpus=1), parallel(1), 2)
    check_trial(Cluster(2, gpus=1, link=1e9), parallel(2), 64)
    with pytest.raises(UsageError, match="3 processes of a trial, and room for 2 GPUs"):
        check_trial(Cluster(2, gpus=1, link=1e9), parallel(3), 1)
    with pytest.raises(UsageError, match=r"5 processes of a trial, and room for 4 ranks of 2 thread\(s\)"):
        check_trial(Cluster(2, cpus=4, link=1e9), parallel(5), 2)
