"""Commands that torchrun has started: what they say to each other, and what happens when one has ended."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch.distributed as dist
from small_trials import put, spec

from suite.errors import UsageError
from suite.trials import trial as trials
from suite.trials.building import device_of
from suite.trials.folder.records import write_record
from suite.trials.ranks import allocation as allocations
from suite.trials.ranks import connection, processes
from suite.trials.ranks.allocation import Allocation, End, RemoteRank, follow, receive, send
from suite.trials.ranks.processes import Failure
from suite.trials.trial_run import TrialRun

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store():
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Nothing that runs the tests may look like `torchrun` or a trial, and no test changes what a follower logs."""
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "FATAL")
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "SLURM_STEP_NUM_TASKS", "PDT_RANK"):
        monkeypatch.delenv(name, raising=False)


class Scripted:
    """A rank that has ended, or reports a failure, after a number of questions."""

    def __init__(self, status=None, reported=None, after=0):
        self._status, self._reported, self._left = status, reported, after

    def poll(self):
        self._left -= 1
        return self._status if self._left < 0 else None

    def failure(self):
        return self._reported if self._left < 0 else None

    def kill(self):
        pass


def of_agent(store, rank):
    return Allocation(rank, 2, rank, "127.0.0.1", store.port)


def nothing_planned():
    return Path("nowhere"), []


def test_commands_after_a_restart_do_not_see_what_was_written_before_it(store, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    first = Allocation.of_environment().store()
    first.set("end", "1")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert not Allocation.of_environment().store().check(["end"])
    assert first.check(["end"])


def test_a_follower_ends_with_one_line_when_the_store_is_lost(caplog, monkeypatch):
    held, status, asked = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)], [], threading.Event()
    follower = of_agent(held[0], 1)
    monkeypatch.setattr(allocations.time, "sleep", lambda seconds: asked.set() or threading.Event().wait(seconds))
    running = threading.Thread(target=lambda: status.append(follow(follower, nothing_planned)))
    running.start()
    assert asked.wait(20)
    held.clear()  # ends the store, as the end of torchrun does
    running.join(20)
    assert status == [1]
    assert caplog.messages == ["torchrun has ended"]


def test_a_follower_leaves_out_trials_for_which_rank_0_does_not_wait_any_more(store, monkeypatch):
    started = []
    monkeypatch.setattr(
        allocations, "_run_rank", lambda allocation, store, number, plan: started.append(number) or End(0)
    )
    leader = of_agent(store, 0).store()
    leader.set("trials/1", "a")
    leader.set("trials/1/stop", "")
    leader.set("trials/2", "b")
    leader.set("trials/3", "c")
    follower = threading.Thread(target=follow, args=(of_agent(store, 1), nothing_planned))
    follower.start()
    while not started:
        time.sleep(0.01)
    leader.set("end", "")
    follower.join(10)
    assert started == [3]


def test_a_rank_trains_only_what_its_own_command_has_planned(tmp_path):
    trial = spec("dense")
    folder = tmp_path / "trials" / trial.trial_id

    def refused(match, name=trial.trial_id):
        with pytest.raises(UsageError, match=match):
            allocations._checked_folder(tmp_path, [trial], name)

    refused("is not visible here; --out must be a folder that all machines share")
    put(tmp_path, trial, "running")
    assert allocations._checked_folder(tmp_path, [trial], trial.trial_id) == folder
    for name in ("../trials/" + trial.trial_id, str(folder), "dense-digits-resnet9-s1-00000000", ""):
        refused("has not planned; all ranks need the same command line", name)
    write_record(folder, replace(trial, plugins=("/tmp/mine.py",)), "running")
    refused("trial.json is not that of the trial that the command of this rank has planned")


@pytest.mark.parametrize(
    "content",
    [b"", b"0", b"{}", b"\xff", b'{"status": "0"}', b'{"status": 0, "failure": {"rank": 1, "status": "done"}}'],
)
def test_a_message_that_no_command_has_written_is_one_line(store, content):
    store.set("trials/1/1", content)
    with pytest.raises(UsageError, match="trials/1/1, which no command of this suite has written"):
        RemoteRank(store, 1, 1).poll()


def test_what_a_rank_has_sent_is_what_rank_0_receives(store):
    for sent in (End(0), End(-9, Failure(1, "oom", "not enough memory", lost_others=True))):
        send(store, "key", sent)
        assert receive(store, "key") == sent


@pytest.mark.parametrize("said", ["trials/1/stop", "trials/2", "end"])
def test_a_follower_ends_its_rank_when_rank_0_does_not_wait_for_the_trial_any_more(store, monkeypatch, tmp_path, said):
    """The process of a trial that `--timeout` kills says nothing, but the next trial starts, or the command ends."""
    killed = threading.Event()

    class Endless(Scripted):
        def __init__(self, *_, **__):
            super().__init__()
            leader.set(said, "0")

        def kill(self):
            killed.set()

    monkeypatch.setattr(allocations, "LocalRank", Endless)
    leader = of_agent(store, 0).store()
    trial = spec("dense")
    put(tmp_path, trial, "running")
    leader.set("trials/1", trial.trial_id)
    arguments = of_agent(store, 1), leader, 1, lambda: (tmp_path, [trial])
    asked = threading.Thread(target=allocations._run_rank, args=arguments, daemon=True)
    asked.start()
    asked.join(10)
    assert killed.is_set()


def test_ranks_that_hang_are_not_waited_for_when_rank_0_is_done_or_one_has_failed(monkeypatch):
    monkeypatch.setattr(processes, "GRACE_SECONDS", 0.2)
    own = Failure(1, "error", "rank 1 ended with exit status 3")
    assert processes.wait_for({0: Scripted(0), 1: Scripted()}) == []
    assert processes.wait_for({0: Scripted(), 1: Scripted(3)}) == [own]
    (killed,) = processes.wait_for({0: Scripted(), 1: Scripted(-9)})
    assert (killed.status, killed.message) == ("error", "rank 1 was killed by signal 9")
    assert processes.wait_for({0: Scripted(0), 1: Scripted(3, after=2)}) == [own]


def test_a_rank_uses_the_only_gpu_that_it_sees_or_the_one_of_its_number(monkeypatch):
    """A scheduler may show each process its own GPU only, as number 0."""
    count = 1
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setenv("PDT_LOCAL_RANK", "3")
    assert connection.cuda_device().index == 0
    assert device_of(SimpleNamespace(device="cuda", device_index=None)).index == 0
    count = 4
    assert connection.cuda_device().index == 3
    count = 2
    with pytest.raises(UsageError, match="rank 3 of this machine has no GPU: this process sees 2, and each"):
        connection.cuda_device()
    monkeypatch.delenv("PDT_LOCAL_RANK")
    assert connection.cuda_device(1).index == 1


def test_a_rank_leaves_the_others_before_its_process_ends(tmp_path, monkeypatch):
    left = []
    trial = replace(spec("dense"), processes=2)
    write_record(tmp_path, trial, "running")
    monkeypatch.setattr(sys, "argv", ["trial", str(tmp_path)])
    monkeypatch.setenv("PDT_RANK", "1")
    monkeypatch.setattr(TrialRun, "run", lambda self: left.append("trained"))
    monkeypatch.setattr(connection, "leave_ranks", lambda: left.append("left"))
    assert trials.main() == 0
    assert left == ["trained", "left"]


def test_ranks_of_one_machine_listen_on_the_loopback_interface(tmp_path, monkeypatch):
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "")  # restored at the end
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PDT_RANK", "0")
    monkeypatch.setenv("PDT_RENDEZVOUS", f"file://{tmp_path / 'a #b'}")

    def listening():
        return {one.laddr for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"}

    before = listening()
    connection.join_ranks(spec("dense"))
    try:
        addresses = {address.ip for address in listening() - before}
        assert os.environ["GLOO_SOCKET_IFNAME"] == connection._loopback() != ""
        assert (tmp_path / "a #b").is_file()
        assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    finally:
        dist.destroy_process_group()


WAITS = """
import os, sys
from dataclasses import replace
sys.path[:0] = sys.argv[2:]
from small_trials import spec
from suite.trials.ranks import connection

os.environ |= {"PDT_RANK": "0", "PDT_RENDEZVOUS": f"file://{sys.argv[1]}/store", "PDT_RANK_FAILURES": sys.argv[1]}
connection.CONNECT_SECONDS = 2.0
connection.join_ranks(replace(spec("dense"), processes=2))
"""


def test_a_client_that_says_nothing_ends_a_trial_soon_and_with_a_line(tmp_path):
    """It connects to each port that opens; the other rank does not come."""
    paths = [str(ROOT), str(ROOT / "tests" / "support")]
    waiting = subprocess.Popen([sys.executable, "-c", WAITS, tmp_path, *paths], stderr=subprocess.PIPE, text=True)
    silent = {}
    while waiting.poll() is None:
        with contextlib.suppress(psutil.Error, OSError):
            for one in psutil.Process(waiting.pid).net_connections("tcp"):
                if one.status == "LISTEN" and one.laddr not in silent:
                    silent[one.laddr] = socket.create_connection(one.laddr, timeout=1)
        time.sleep(0.05)
    for client in silent.values():
        client.close()
    message = "rank 0 was not connected with the other ranks after 2 s"
    assert (waiting.returncode, waiting.stderr.read()) == (1, f"{message}\n")
    assert Failure(**json.loads((tmp_path / "0.json").read_text())) == Failure(0, "error", message)
    assert silent


def test_who_has_left_has_no_connections(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    connection.leave_ranks()
    assert not dist.is_initialized()
