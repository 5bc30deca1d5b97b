"""Progress of trials: the files that report it, the remaining time on a clock that the tests move, bars and lines."""

import contextlib
import dataclasses
import io
import re

import pytest
from rich.console import Console
from small_trials import spec

from suite.trials import progress
from suite.trials.process import Position, ProgressFile
from suite.trials.progress import (
    LINE_INTERVAL,
    EpochReader,
    Measurements,
    TimeLeft,
    TrialProgress,
    duration,
    ended_text,
    epoch_text,
    share_of_work,
)

EPOCHS = 10


class Clock:
    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


def trials(*methods, **changes):
    return [spec(method, seed=seed, epochs=EPOCHS, **changes) for seed, method in enumerate(methods)]


def test_the_progress_file_is_written_at_most_twice_a_second(tmp_path):
    file = ProgressFile(tmp_path)
    assert file.read() is None
    for step in range(100):
        file.write(0, 3, step / 300)
    assert file.read() == Position(0, 3, 0.0)
    file.write(3, 3, 1.0)
    assert file.read() == Position(3, 3, 1.0)
    ProgressFile(tmp_path / "absent").write(1, 3, 0.4)  # progress that cannot be written ends no trial
    assert ProgressFile(tmp_path / "absent").read() is None


def test_epochs_are_read_once_and_only_when_complete(tmp_path):
    path = tmp_path / "epochs.jsonl"
    path.write_text('{"epoch": 1}\n')
    reader = EpochReader(tmp_path)
    assert reader.read() == []
    with open(path, "a") as file:
        file.write('{"epoch": 2}\n{"epo')
        file.flush()
        assert reader.read() == [{"epoch": 2}]
        file.write('ch": 3}\nnot json\n')
    assert reader.read() == [{"epoch": 3}]
    path.write_text("")  # a resumed trial removes the epochs after its checkpoint
    assert reader.read() == []
    path.write_text('{"epoch": 1}\n')
    assert reader.read() == [{"epoch": 1}]
    path.unlink()  # a trial begins again
    assert reader.read() == []
    path.write_text('{"epoch": 1}\n')
    assert reader.read() == [{"epoch": 1}]


def test_the_work_of_larger_images_grows_with_their_pixels():
    growing = spec("dense", epochs=6, train_sizes=(32, 64), size_milestones=(0.5,)).make_recipe()
    # Three epochs of 1 s, then three of 4 s.
    assert [share_of_work(growing, epochs / 6) * 15 for epochs in (0, 2, 3, 4.5, 6)] == pytest.approx([0, 2, 3, 9, 15])
    assert share_of_work(spec("dense", epochs=2.5).make_recipe(), 0.3) == pytest.approx(0.3)


def test_a_text_about_an_epoch_has_what_its_record_has():
    record = {"epoch": 3, "epochs_left": 0, "train_loss": 0.91, "test_accuracy": 0.8214, "train_time_s": 130}
    assert epoch_text(record, 0.0) == "epoch 3/3  loss 0.910  accuracy 82.14 %  2 min 10 s"
    assert epoch_text({"epoch": 1, "epochs_left": 2, "train_loss": None}) == "epoch 1/3"
    second = {"epoch": 2, "epochs_left": 3, "train_time_s": 60.0, "val_accuracy": 0.5}
    assert epoch_text(second, 105.0) == "epoch 2/5  validation accuracy 50.00 %  1 min 0 s  about 1 min 45 s left"


def test_a_text_about_an_end_says_where_the_seconds_went():
    result = {"train_time_s": 61.0, "eval_time_s": 5.0, "compile_time_s": None}
    done = {"status": "done", "message": "", "result": result}
    assert ended_text(done, 70.0) == "done after 1 min 10 s: training 1 min 1 s, evaluation 5.0 s"
    result["compile_time_s"] = 3.0
    assert ended_text(done, 70.0).endswith("evaluation 5.0 s, compilation 3.0 s")
    failed = {"status": "error", "message": "killed", "provenance": {"callbacks_failed": ["on_epoch: no"]}}
    assert ended_text(failed, 1.0) == "error after 1.0 s; on_epoch: no: killed"
    texts = ["3.2 s", "10 s", "1 min 0 s", "1 h 0 min", "1 h 5 min"]
    assert [duration(seconds) for seconds in (3.24, 9.96, 59.6, 3599.7, 3900)] == texts


def test_waiting_trials_take_as_long_as_those_most_like_them():
    dense, sdgp, again, more = trials("dense", "sdgp", "dense", "sdgp")
    longer = spec("sdgp", epochs=3 * EPOCHS)
    elsewhere = dataclasses.replace(longer, model="vgg11")
    left = TimeLeft([dense, sdgp, again, more, longer, elsewhere])
    assert left.remaining() is None
    for trial, seconds in ((dense, 100.0), (sdgp, 60.0)):
        left.started(trial)
        left.ended(trial, seconds, failed=False)
    # Other numbers of epochs count by epoch: 8 s each, as the mean of all trials.
    assert left.remaining() == pytest.approx(100 + 60 + 240 + 240)
    assert (left.num_started, left.num_ended) == (2, 2)


def test_trials_that_run_at_the_same_time_share_the_rest():
    first, second, third, fourth = trials("dense", "dense", "dense", "dense")
    left = TimeLeft([first, second, third, fourth])
    for trial in (first, second):
        left.started(trial)
    assert left.remaining() is None
    left.pace(first, 100.0, 0.2)
    assert left.remaining() == pytest.approx((80 + 100 + 100 + 100) / 2)
    left.ended(first, 100.0, failed=False)
    for trial in (third, fourth):
        left.started(trial)
        left.ended(trial, 100.0, failed=False)
    left.pace(second, 40.0, 0.5)
    assert left.remaining() == pytest.approx(20)  # the last one cannot be divided


def test_failed_trials_say_nothing_and_resumed_ones_by_their_pace():
    first, second, third = trials("dense", "dense", "dense")
    left = TimeLeft([first, second, third])
    left.started(first)
    left.pace(first, 300.0, 0.5)
    left.ended(first, 150.0, failed=True)
    assert left.remaining() is None
    left.started(second)
    left.pace(second, 200.0, 0.9)
    left.ended(second, None, failed=False)
    assert left.remaining() == 200
    left.started(third)
    left.ended(third, 0.0, failed=True)
    assert left.remaining() == 0


def shown(chosen, statuses, clock, terminal=False):
    """Return what is shown of trials of 200 s that end, but for the last one, whose status may be empty.

    The first trial is resumed.
    """
    console = Console(file=io.StringIO(), force_terminal=terminal, force_interactive=terminal, width=250)
    with TrialProgress(chosen, console) as listener:
        for trial, resumed_after, status in zip(chosen, (3, 0), statuses, strict=False):
            listener.started(trial)
            for seconds, fraction in ((LINE_INTERVAL - 1, 0.35), (41, 0.5), (0, 0.5)):
                clock.seconds += seconds
                listener.position(trial, Position(int(fraction * EPOCHS), EPOCHS, fraction, resumed_after))
            for epoch in (4, 5):
                times = {"train_time_s": epoch**2, "eval_time_s": 0}
                listener.epoch(trial, {"epoch": epoch, "epochs_left": EPOCHS - epoch, **times})
            clock.seconds += 100
            if status:
                message = "" if status == "done" else "killed [x] :x:"
                result = {"train_time_s": 150, "eval_time_s": 20}
                listener.ended(trial, {"status": status, "message": message, "result": result}, 200.0)
    return console.file.getvalue()


def test_lines_say_what_happens_and_once_a_minute_what_is_left_of_all(clock):
    first, second = trials("dense", "sdgp")
    dense, sdgp = first.trial_id, second.trial_id
    assert shown([first, second], ("done", "error"), clock).splitlines() == [
        f"{dense}  trial 1/2: dense",
        f"{dense}  resumed after epoch 3/10",
        "0 of 2 trials have ended, about 6 min 50 s left for all of them",
        f"{dense}  epoch 4/10  16 s  about 2 min 17 s left",
        f"{dense}  epoch 5/10  25 s  about 2 min 17 s left",
        f"{dense}  done after 3 min 20 s: training 2 min 30 s, evaluation 20 s",
        "1 of 2 trials have ended, about 4 min 33 s left for all of them",
        f"{sdgp}  trial 2/2: sdgp",
        "1 of 2 trials have ended, about 2 min 17 s left for all of them",
        f"{sdgp}  epoch 4/10  16 s  about 2 min 17 s left",
        f"{sdgp}  epoch 5/10  25 s  about 2 min 17 s left",
        f"{sdgp}  error after 3 min 20 s: killed [x] :x:",
    ]
    assert "have ended" not in shown([first], ("done",), clock)


def test_bars_show_each_trial_and_all_of_them(clock):
    first, second = trials("dense", "sdgp")
    text = shown([first, second], ("error", ""), clock, terminal=True)
    assert f"{first.trial_id}  error after 3 min 20 s: killed [x] :x:" in text
    bars = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)  # without codes of the terminal
    assert re.search(
        rf"all trials .* about 2 min 17 s left .*\n2/2 {second.trial_id} .* epoch 5/10  25 s  about 2 min 17 s left",
        bars,
    )
    assert "have ended" not in text
    assert "all trials" not in shown([first], ("",), clock, terminal=True)


def test_each_measurement_is_announced_with_the_time_of_those_that_have_ended(clock):
    dense, again, sdgp, last = trials("dense", "dense", "sdgp[n=1,m=4]", "sdgp[n=1,m=4]")
    console = Console(file=io.StringIO(), width=200)
    measurements = Measurements([dense, dense, sdgp, sdgp, sdgp], console)
    # `again` has another seed than was foreseen; the first measurement fails and tells nothing about the others.
    for trial, seconds in ((sdgp, None), (dense, 20.0), (sdgp, 30.0), (again, 10.0), (last, 30.0)):
        with contextlib.suppress(ZeroDivisionError), measurements.measuring(trial, trial.label):
            clock.seconds += seconds or 1 / 0
    assert console.file.getvalue().splitlines() == [
        "measurement 1/5: sdgp[n=1,m=4]",
        "measurement 2/5: dense",
        "measurement 3/5: sdgp[n=1,m=4]; about 20 s, about 1 min 0 s left for all of them",
        "measurement 4/5: dense; about 20 s, about 50 s left for all of them",
        "measurement 5/5: sdgp[n=1,m=4]; about 30 s",
    ]
