"""Energy counters: a wrapped counter loses nothing, what cannot be read has a reason, and spans share the energy."""

import ctypes
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from suite.engine.cost.clock import Clock, EnergyCounter, NoCounter, RaplPackage, open_nvml, open_rapl
from suite.trials.trial_run import count_energy

CPU = torch.device("cpu")


def package(powercap, number, name="package-0", largest=999, value=0):
    folder = Path(powercap) / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "max_energy_range_uj").write_text(f"{largest}\n")
    (folder / "energy_uj").write_text(f"{value}\n")
    return folder


@given(st.integers(1, 2**40), st.data())
def test_a_counter_that_wraps_around_loses_nothing(largest, data):
    begin = data.draw(st.integers(0, largest))
    steps = data.draw(st.lists(st.integers(0, largest), max_size=6))
    with tempfile.TemporaryDirectory() as powercap:
        folder, total = package(powercap, 0, largest=largest, value=begin), 0
        counter = RaplPackage(folder)
        for step in steps:
            total += step
            (folder / "energy_uj").write_text(str((begin + total) % (largest + 1)))
            assert counter.microjoules() == total


def test_packages_are_added_and_their_parts_are_not(tmp_path):
    folders = [package(tmp_path, 0), package(tmp_path, 1, "package-1", value=100)]
    parts = [package(tmp_path, "0:0", "core"), package(tmp_path, 2, "psys"), package(tmp_path, "0:1", "dram")]
    (tmp_path / "intel-rapl-mmio:0").mkdir()  # the same package again
    counter = open_rapl(tmp_path)
    for folder in (*folders, *parts):
        (folder / "energy_uj").write_text("700")
    assert counter.joules() == pytest.approx((700 + 600) / 1e6)
    assert counter.source == "RAPL, package-0 and package-1: the whole package, other programs included"


def test_a_thread_reads_the_counter_before_it_wraps_twice():
    read = threading.Event()

    def joules():
        read.set()
        return 1.0

    counter = EnergyCounter("made up", joules, poll_s=0.001)
    assert read.wait(10)
    counter._stop.set()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "name").write_text("psys"), "has no intel-rapl package"),
        (lambda folder: (folder / "energy_uj").unlink(), "No such file"),
        (lambda folder: (folder / "max_energy_range_uj").write_text("0"), "has the range 0"),
    ],
)
def test_what_cannot_be_read_has_a_reason(tmp_path, change, reason):
    change(package(tmp_path, 0))
    with pytest.raises(NoCounter, match=reason):
        open_rapl(tmp_path)


def test_only_root_may_read_it(tmp_path, monkeypatch):
    package(tmp_path, 0)

    def refuse(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(RaplPackage, "_read", refuse)
    with pytest.raises(NoCounter, match="only root may read"):
        open_rapl(tmp_path)
    with pytest.raises(NoCounter, match="has no intel-rapl package"):
        open_rapl(tmp_path / "none")


class FakeNvml:
    """Three functions of NVML, which count 1,500 mJ from one reading to the next."""

    def __init__(self, status=0):
        self.total, self.status, self.asked = 10_000, status, b""

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid, handle):
        self.asked = uuid.value
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, millijoules):
        self.total += 1500
        ctypes.cast(millijoules, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.total
        return self.status


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="ab-12"))
    return torch.device("cuda", 0)


def test_the_energy_of_a_gpu(gpu):
    nvml = FakeNvml()
    counter = open_nvml(gpu, lambda name: nvml)
    assert [counter.joules(), counter.joules()] == [1.5, 3.0]
    assert nvml.asked == b"GPU-ab-12"


def test_a_gpu_without_a_counter_has_a_reason(gpu):
    with pytest.raises(NoCounter, match="nvmlDeviceGetTotalEnergyConsumption returned 3"):
        open_nvml(gpu, lambda name: FakeNvml(3))

    def absent(name):
        raise OSError(f"{name}: no such library")

    with pytest.raises(NoCounter, match="NVML: libnvidia-ml"):
        open_nvml(gpu, absent)


def test_spans_share_the_energy_as_they_share_the_time():
    values = iter([0.0, 1.0, 4.0, 9.0, 9.0, 11.0, 11.0, 12.0])
    clock = Clock(CPU)
    assert "energy_j" not in clock.columns()
    clock.count_energy(EnergyCounter("made up", lambda: next(values)))
    with clock.span("train"), clock.span("compile"):
        pass
    with clock.span("reconfigure"):
        pass
    assert clock.joules["compile"] == 3.0
    assert clock.columns()["energy_j"] == (9.0 - 3.0) + 2.0
    resumed = Clock(CPU)
    resumed.count_energy(EnergyCounter("made up", lambda: next(values)))
    resumed.load_state_dict(clock.state_dict())
    with resumed.span("train"):
        pass
    assert resumed.columns()["energy_j"] == 9.0
    # If one attempt was not measured, the sum is not known.
    resumed.load_state_dict(Clock(CPU).state_dict())
    assert "energy_j" not in resumed.columns()
    other = Clock(CPU)
    other.load_state_dict(clock.state_dict())
    assert "energy_j" not in other.columns()


def test_a_trial_says_what_is_counted_or_why_nothing_is(tmp_path, monkeypatch):
    clock = Clock(CPU)
    monkeypatch.setattr("suite.trials.trial_run.open_counter", lambda device: open_rapl(tmp_path))
    assert count_energy(clock, CPU) == f"not measured (RAPL: {tmp_path} has no intel-rapl package)"
    assert clock.joules is None
    package(tmp_path, 0)
    assert count_energy(clock, CPU).startswith("RAPL, package-0")
    assert clock.joules is not None
