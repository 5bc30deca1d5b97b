"""Progress of trials: the files that report it, the remaining time on a clock that the tests move, bars and lines."""

import contextlib
import dataclasses
import io
import re

import pytest
from rich.console import Console
from small_trials import spec

from suite.trials import progress
from suite.trials.progress import (
    LINE_INTERVAL,
    EpochReader,
    Measurements,
    Position,
    ProgressFile,
    TimeLeft,
    TrialProgress,
    duration,
    ended_text,
    epoch_text,
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


@pytest.mark.parametrize(("epoch", "epochs", "evaluating", "left"), [
    (2, 8, 0.0, "1 min 0 s"),  # no evaluation yet
    (3, 8, 6.0, "1 min 2 s"),  # 5 epochs, and evaluations after epochs 6 and 8
    (7, 8, 12.0, "16 s"),
    (5, 6, 6.0, "16 s"),
    (4, 9, 6.0, "1 min 2 s"),
])  # fmt: skip
def test_the_remaining_evaluations_are_counted(epoch, epochs, evaluating, left):
    record = {"epoch": epoch, "epochs_left": epochs - epoch, "train_time_s": 10.0 * epoch, "eval_time_s": evaluating}
    assert epoch_text(spec("dense", eval_every=3), record).endswith(f"  about {left} left")


def test_epochs_of_larger_images_take_longer_by_their_pixels():
    growing = spec("dense", epochs=6, train_sizes=(32, 64), size_milestones=(0.5,))

    def left(epoch, seconds, before=None, epochs=6):
        record = {"epoch": epoch, "epochs_left": epochs - epoch, "train_time_s": seconds, "eval_time_s": 0.0}
        earlier = {"epoch": before[0], "train_time_s": before[1]} if before else None
        return epoch_text(growing, record, earlier).rpartition("about ")[2]

    # Three epochs of 1 s, then three of 4 s.
    assert left(1, 1.0) == left(1, 1.0, (3, 3.0)) == "14 s left"  # a repeated trial begins again
    assert left(3, 3.0, (2, 2.0)) == "12 s left"
    assert left(4, 7.0, (3, 3.0)) == left(4, 7.0) == "8.0 s left"
    # The schedule began again after the fourth epoch.
    assert left(4, 7.0, (3, 3.0), epochs=10) == left(4, 7.0, epochs=10) == "15 s left"
    assert left(5, 8.0, (4, 7.0), epochs=10) == left(5, 8.0, (3, 3.0), epochs=10) == "14 s left"


def test_a_text_about_an_epoch_has_what_its_record_has():
    trial = spec("dense", epochs=3)
    record = {"epoch": 3, "train_loss": 0.91, "test_accuracy": 0.8214, "train_time_s": 130}
    assert epoch_text(trial, record) == "epoch 3/3  loss 0.910  accuracy 82.14 %  2 min 10 s"
    assert epoch_text(trial, {"epoch": 1, "train_loss": None}) == "epoch 1/3"
    first = {"epoch": 1, "epochs_left": 4, "train_time_s": 40.0, "eval_time_s": 5.0}
    second = {"epoch": 2, "epochs_left": 3, "train_time_s": 60.0, "eval_time_s": 10.0, "val_accuracy": 0.5}
    assert epoch_text(trial, first) == "epoch 1/5  40 s  about 3 min 0 s left"
    text = "epoch 2/5  validation accuracy 50.00 %  1 min 0 s"
    assert epoch_text(trial, second) == f"{text}  about 1 min 45 s left"  # resumed: the mean of two epochs
    assert epoch_text(trial, second, first) == f"{text}  about 1 min 15 s left"  # the last one took 25 s
    assert epoch_text(trial, {**second, "epochs_left": 0}, first).endswith(
        "epoch 2/2  validation accuracy 50.00 %  1 min 0 s"
    )


def test_a_text_about_an_end_says_where_the_seconds_went():
    result = {"train_time_s": 61.0, "eval_time_s": 5.0}
    done = {"status": "done", "message": "", "result": result}
    parts = "training 1 min 1 s, evaluation 5.0 s, start, files and inference speed 4.0 s"
    assert ended_text(done, 70.0) == f"done after 1 min 10 s: {parts}"
    assert ended_text(done, 30.0) == "done after 30 s"  # resumed: trained before this process
    result["compile_time_s"] = 3.0
    assert ended_text(done, 70.0).endswith("compilation 3.0 s, start, files and inference speed 1.0 s")
    failed = {"status": "error", "message": "killed", "provenance": {"callbacks_failed": ["on_epoch: no"]}}
    assert ended_text(failed, 1.0) == "error after 1.0 s; on_epoch: no: killed"
    texts = ["3.2 s", "10 s", "1 min 0 s", "1 h 0 min", "1 h 5 min"]
    assert [duration(seconds) for seconds in (3.24, 9.96, 59.6, 3599.7, 3900)] == texts


def test_what_precedes_the_first_step_counts_once_and_nothing_is_known_before_a_share_is_done(clock):
    first, second = trials("dense", "dense")
    left = TimeLeft([first, second])
    assert left.remaining() is None
    left.started(first)
    clock.seconds += 30  # imports, and kernels that are compiled in the trial
    left.position(first, Position(0, EPOCHS, 0.0))
    clock.seconds += 2
    left.position(first, Position(0, EPOCHS, 0.01))
    assert left.remaining() is None
    left.position(first, Position(1, EPOCHS, 0.1))
    assert left.remaining() == pytest.approx(18 + 30 + 20)


def test_waiting_trials_take_as_long_as_those_most_like_them(clock):
    dense, sdgp, again, more = trials("dense", "sdgp", "dense", "sdgp")
    longer = spec("sdgp", epochs=3 * EPOCHS)
    elsewhere = dataclasses.replace(longer, model="vgg11")
    left = TimeLeft([dense, sdgp, again, more, longer, elsewhere])
    for trial, seconds in ((dense, 100.0), (sdgp, 60.0)):
        left.started(trial)
        clock.seconds += seconds
        left.ended(trial, "done", seconds)
    # Other numbers of epochs count by epoch: 8 s each, as the mean of all trials.
    assert left.remaining() == pytest.approx(100 + 60 + 240 + 240)
    assert (left.num_started, left.num_ended, left.done) == (2, 2, 2)


def test_trials_that_run_at_the_same_time_share_the_rest(clock):
    first, second, third, fourth = trials("dense", "dense", "dense", "dense")
    left = TimeLeft([first, second, third, fourth])
    for trial in (first, second):
        left.started(trial)
    clock.seconds += 20
    for trial in (first, second):
        left.position(trial, Position(2, EPOCHS, 0.2))
    assert left.remaining() == pytest.approx((80 + 80 + 100 + 100) / 2)
    left.ended(first, "done", 100.0)
    for trial in (third, fourth):
        left.started(trial)
        left.ended(trial, "done", 100.0)
    left.position(second, Position(4, EPOCHS, 0.5))
    assert left.remaining() == pytest.approx(20)  # the last one cannot be divided
    assert left.done == 3.5


def test_failed_trials_say_nothing():
    first, second = trials("dense", "dense")
    left = TimeLeft([first, second])
    for trial, status, remaining in ((first, "error", None), (second, "skipped", 0)):
        left.started(trial)
        left.ended(trial, status, 1.0)
        assert left.remaining() == remaining


def test_trials_of_larger_images_take_longer_by_their_pixels_and_resumed_ones_by_what_is_left(clock):
    first, second = trials("dense", "dense", train_sizes=(32, 64), size_milestones=(0.5,))
    left = TimeLeft([first, second])
    left.started(first)
    clock.seconds += 20
    left.position(first, Position(2, EPOCHS, 0.2))
    # Five epochs of 10 s, then five of 40 s.
    assert left.remaining() == pytest.approx(230 + 250)
    clock.seconds += 70
    left.position(first, Position(6, EPOCHS, 0.6))
    assert left.remaining() == pytest.approx(160 + 250)
    left.ended(first, "done", 250.0)
    left.started(second)
    left.position(second, Position(5, EPOCHS, 0.5, resumed_after=5))
    assert left.remaining() == pytest.approx(200)
    clock.seconds += 60
    left.position(second, Position(6, EPOCHS, 0.65, resumed_after=5))
    assert left.remaining() == pytest.approx(140)


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
        "0 of 2 trials have ended, about 12 min 30 s left for all of them",
        f"{dense}  epoch 4/10  16 s  about 24 s left",
        f"{dense}  epoch 5/10  25 s  about 45 s left",
        f"{dense}  done after 3 min 20 s: training 2 min 30 s, evaluation 20 s, start, files and inference speed 30 s",
        "1 of 2 trials have ended, about 4 min 46 s left for all of them",
        f"{sdgp}  trial 2/2: sdgp",
        "1 of 2 trials have ended, about 1 min 40 s left for all of them",
        f"{sdgp}  epoch 4/10  16 s  about 24 s left",
        f"{sdgp}  epoch 5/10  25 s  about 45 s left",
        f"{sdgp}  error after 3 min 20 s: killed [x] :x:",
    ]
    assert "have ended" not in shown([first], ("done",), clock)


def test_bars_show_each_trial_and_all_of_them(clock):
    first, second = trials("dense", "sdgp")
    text = shown([first, second], ("error", ""), clock, terminal=True)
    assert f"{first.trial_id}  error after 3 min 20 s: killed [x] :x:" in text
    bars = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)  # without codes of the terminal
    assert re.search(
        rf"all trials .* about 1 min 40 s left .*\n2/2 {second.trial_id} .* epoch 5/10  25 s  about ", bars
    )
    assert "have ended" not in text
    assert "all trials" not in shown([first], ("",), clock, terminal=True)


@pytest.mark.parametrize("terminal", [False, True])
def test_each_measurement_is_announced_with_the_time_of_those_that_have_ended(clock, terminal):
    dense, again, sdgp, last = trials("dense", "dense", "sdgp[n=1,m=4]", "sdgp[n=1,m=4]")
    console = Console(file=io.StringIO(), force_terminal=terminal, width=200)
    measurements = Measurements([dense, dense, sdgp, sdgp, sdgp], console)
    # `again` has another seed than was foreseen; the first measurement fails and tells nothing about the others.
    for trial, seconds in ((sdgp, None), (dense, 20.0), (sdgp, 30.0), (again, 10.0), (last, 30.0)):
        with contextlib.suppress(ZeroDivisionError), measurements.measuring(trial, trial.label):
            clock.seconds += seconds or 1 / 0
    text = console.file.getvalue()
    assert re.findall(r"measurement \d.*", text) == [
        "measurement 1/5: sdgp[n=1,m=4]",
        "measurement 2/5: dense",
        "measurement 3/5: sdgp[n=1,m=4]; about 20 s, about 1 min 0 s left for all of them",
        "measurement 4/5: dense; about 20 s, about 50 s left for all of them",
        "measurement 5/5: sdgp[n=1,m=4]; about 30 s",
    ]
    assert ("all measurements" in text) is terminal
