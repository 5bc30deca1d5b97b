"""Tests of the progress of trials: the files that report it, and the lines and bars that show it."""

import io

from engine_children import spec
from rich.console import Console

from suite.trials.listeners import Lines, listener_for
from suite.trials.progress import EpochReader, Position, ProgressFile, duration, ended_line, epoch_line


def test_the_progress_file_is_written_at_most_twice_a_second(tmp_path):
    file = ProgressFile(tmp_path)
    assert file.read() is None
    for step in range(100):
        file.write(0, 3, step / 300)
    assert file.read() == Position(0, 3, 0.0)
    file.write(3, 3, 1.0)
    assert file.read() == Position(3, 3, 1.0)
    (tmp_path / "progress.json").write_text('{"epoch": ')
    assert file.read() is None


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


def test_the_remaining_evaluations_are_counted():
    seldom = spec("dense", eval_every=3)

    def left(epoch, epochs, evaluating):
        record = {
            "epoch": epoch,
            "epochs_left": epochs - epoch,
            "train_time_s": 10.0 * epoch,
            "eval_time_s": evaluating,
        }
        return epoch_line(seldom, record).rpartition("about ")[2]

    assert left(2, 8, 0.0) == "1 min 0 s left"  # no evaluation yet
    assert left(3, 8, 6.0) == "1 min 2 s left"  # 5 epochs, and evaluations after epochs 6 and 8
    assert left(7, 8, 12.0) == "16 s left"
    assert left(5, 6, 6.0) == "16 s left"
    assert left(4, 9, 6.0) == "1 min 2 s left"


def test_larger_images_take_longer_by_their_pixels():
    growing = spec("dense", epochs=6, train_sizes=(32, 64), size_milestones=(0.5,))

    def left(epoch, seconds, before=None, epochs=6):
        record = {"epoch": epoch, "epochs_left": epochs - epoch, "train_time_s": seconds, "eval_time_s": 0.0}
        earlier = {"epoch": before[0], "train_time_s": before[1]} if before else None
        return epoch_line(growing, record, earlier).rpartition("about ")[2]

    # Three epochs of 1 s, then three of 4 s.
    assert left(1, 1.0) == "14 s left"
    assert left(3, 3.0, (2, 2.0)) == "12 s left"
    assert left(4, 7.0, (3, 3.0)) == left(4, 7.0) == "8.0 s left"
    # The schedule began again after the fourth epoch.
    assert left(4, 7.0, (3, 3.0), epochs=10) == left(4, 7.0, epochs=10) == "15 s left"
    assert left(5, 8.0, (4, 7.0), epochs=10) == left(5, 8.0, (3, 3.0), epochs=10) == "14 s left"


def test_lines_and_bars(capsys):

    record = {"epoch": 3, "train_loss": 0.91, "test_accuracy": 0.8214, "train_time_s": 130}
    line = epoch_line(spec("dense"), record)
    assert line == f"{spec('dense').trial_id}  epoch 3/3  loss 0.910  accuracy 82.14 %  2 min 10 s"
    assert epoch_line(spec("dense"), {"epoch": 1, "train_loss": None}).endswith("epoch 1/3")
    first = {"epoch": 1, "epochs_left": 4, "train_time_s": 40.0, "eval_time_s": 5.0}
    second = {"epoch": 2, "epochs_left": 3, "train_time_s": 60.0, "eval_time_s": 10.0}
    assert epoch_line(spec("dense"), first).endswith("epoch 1/5  40 s  about 3 min 0 s left")
    assert epoch_line(spec("dense"), second).endswith("  about 1 min 45 s left")  # resumed: the mean of two epochs
    assert epoch_line(spec("dense"), second, first).endswith("  about 1 min 15 s left")  # the last one took 25 s
    assert "left" not in epoch_line(spec("dense"), second, {**first, "train_time_s": None})
    assert "left" not in epoch_line(spec("dense"), {**second, "epochs_left": 0}, first)
    output = io.StringIO()
    lines = Lines([spec("dense")], Console(file=output))
    for one in (first, second):
        lines.epoch(spec("dense"), one)
    assert "about 1 min 15 s left" in output.getvalue()
    assert [duration(seconds) for seconds in (3.24, 9.96, 59.6, 3599.7, 3900)] == [
        "3.2 s",
        "10 s",
        "1 min 0 s",
        "1 h 0 min",
        "1 h 5 min",
    ]
    assert isinstance(listener_for(Console(file=io.StringIO()), [spec("dense")]), Lines)
    terminal = Console(file=io.StringIO(), force_terminal=True, width=200)
    with listener_for(terminal, [spec("dense")]) as shown:
        shown.started(spec("dense"))
        shown.position(spec("dense"), Position(1, 3, 0.4))
        shown.epoch(spec("dense"), record)
        shown.ended(spec("dense"), {"status": "error", "message": "killed by signal 9 [x]"}, 1.0)
    assert "killed by signal 9 [x]" in terminal.file.getvalue()
    result = {"train_time_s": 61.0, "eval_time_s": 5.0}
    done = {"status": "done", "message": "", "result": result}
    parts = "training 1 min 1 s, evaluation 5.0 s, start, files and inference speed 4.0 s"
    assert ended_line(spec("dense"), done, 70.0) == f"{spec('dense').trial_id}  done after 1 min 10 s: {parts}"
    assert ended_line(spec("dense"), done, 30.0).endswith("done after 30 s")  # resumed: trained before this process
    result["compile_time_s"] = 3.0
    parts = "evaluation 5.0 s, compilation 3.0 s, start, files and inference speed 1.0 s"
    assert ended_line(spec("dense"), done, 70.0).endswith(parts)


def test_progress_that_cannot_be_written_ends_no_trial(tmp_path):
    ProgressFile(tmp_path / "absent").write(1, 3, 0.4)
    assert ProgressFile(tmp_path / "absent").read() is None


def test_a_resumed_trial_says_once_where_it_continues(capsys):
    lines = Lines([spec("dense")], Console())
    lines.started(spec("dense"))
    for position in (Position(3, 5, 0.7, resumed_after=3), Position(4, 5, 0.8, resumed_after=3), Position(0, 5, 0.0)):
        lines.position(spec("dense"), position)
    assert capsys.readouterr().out.splitlines()[1:] == [f"{spec('dense').trial_id}  resumed after epoch 3/5"]
