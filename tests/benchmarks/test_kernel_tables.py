"""Tests of the reader, bars, table and charts of the kernel benchmarks, on invented results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks.kernels import tables as kernel_tables
from benchmarks.kernels.bars import verdicts
from benchmarks.kernels.results import read, read_file
from suite.errors import UsageError

TIMES_AS_LONG = {"median": 52.4, "low": 50.1, "high": 55.0, "least": 53.3}
CPU = {"device": "cpu", "backend": "cpu", "dtype": "float32"}


def said(path):
    """Return (least, holds) of every bar for the first row of a file."""
    run = read_file(path)
    return [(verdict.bar.least, verdict.holds) for verdict in verdicts(run.rows[0], run)]


def test_a_row_is_read_with_its_interval(results, case):
    row = read_file(results(case())).rows[0]
    assert (row.fraction.low, row.fraction.median, row.fraction.high) == pytest.approx((0.92, 0.93, 0.94))
    assert row.bytes == 2 * row.tensor_bytes == 2 * 2 * 512 * 1024 * 256
    assert row.pruning == "magnitude"
    assert read_file(results(case(rescale="channel"))).rows[0].pruning == "rescaled by channel"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"fraction": 0.90}, [(0.90, True)]),
        ({"fraction": 0.899}, [(0.90, False)]),
        ({"fraction": 0.91, "mode": "random", "m": 16}, [(0.90, True)]),
        ({"fraction": 0.80, "n": 16, "m": 32}, [(0.75, True)]),
        ({"fraction": 0.80, "n": 1, "m": 2}, []),
        ({"fraction": 0.60, "rescale": "sample_channel"}, [(0.55, True)]),
        ({"fraction": 0.60, "rescale": "group"}, []),
        ({"fraction": 0.60, "shape": [4, 64, 8, 8]}, []),  # small: most of the time is launching
        ({**CPU, "fraction": 0.81}, [(0.80, True)]),
        ({**CPU, "fraction": 0.79, "dtype": "bfloat16"}, [(0.80, False)]),
        ({**CPU, "fraction": 0.81, "dtype": "float16"}, []),
        ({**CPU, "fraction": 0.81, "rescale": "sample_channel"}, []),
        ({**CPU, "fraction": 0.81, "mode": "unbiased"}, []),
        ({"fraction": 0.60, "mode": "unbiased"}, []),
        ({**CPU, "fraction": 0.81, "shape": [1, 61440, 32, 32]}, [(0.80, True)]),  # just four caches of 60 MiB
        ({**CPU, "fraction": 0.81, "shape": [1, 61439, 32, 32]}, []),
    ],
)
def test_bars_apply_to_the_rows_that_they_name(results, case, changes, expected):
    assert said(results(case(**changes))) == expected


def test_on_a_cpu_topk_is_a_bar_too(results, case):
    for median, holds in ((40.0, True), (39.9, False)):
        times = {**TIMES_AS_LONG, "median": median}
        instead = {"topk and scatter": {"seconds": 0.4, "same_values": True, "times_as_long": times}}
        assert said(results(case(**CPU, fraction=0.9, instead=instead))) == [(0.80, True), (40.0, holds)]


def test_the_page_has_every_case_with_its_bar_and_its_alternatives(results, case, tmp_path, capsys):
    instead = {
        "topk and scatter": {"seconds": 0.4, "same_values": True, "times_as_long": TIMES_AS_LONG},
        "torch.compile": {"failed": "no <compiler> here"},
    }
    first = results(case(instead=instead), case(mode="random", fraction=0.87, dtype="float16"))
    second = results(case(n=8, m=16, rescale="sample_channel", fraction=0.61), name="more.json")
    assert kernel_tables.main([str(first), str(second), "-o", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "kernels.md").read_text(encoding="utf-8")
    assert text.index("## 2:4") < text.index("## 8:16") < text.index("## Copies")
    (row,) = [line for line in text.splitlines() if "| bfloat16 | magnitude |" in line]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    # 2 x 268 MB at 3,720 GB/s are 0.1443 ms.
    assert cells[3:10] == [
        *("512×1024×16×16", "net a and 1 more", "536.9", "0.1443", "3720"),
        *(r"0.930 \[0.920, 0.940\]", "0.950"),
    ]
    assert cells[10] == r"52.4 \[50.1, 55\], 53.3"
    assert cells[11].startswith("failed<sup>")
    assert "no &lt;compiler&gt; here" in text
    assert cells[12] == "holds ≥ 0.90"
    assert "| float16 | random | 512×1024×16×16 |" in text
    assert "MISSED ≥ 0.90 |" in text
    assert "Some GPU, driver 580.1; torch 2.11.0, cuda 13.0" in text
    printed = capsys.readouterr().out
    assert "MISSED  GPU, over 256 MB, not rescaled, m = 4, 8, 16: fraction of a copy: 1 of 2; minimum 0.870" in printed
    assert "holds   GPU, over 256 MB, rescaled by sample_channel" in printed


def test_charts_are_drawn_and_named_in_the_page(results, case, tmp_path):
    instead = {"topk and scatter": {"seconds": 0.4, "same_values": True, "times_as_long": TIMES_AS_LONG}}
    path = results(case(instead=instead), case(shape=[64, 64, 8, 8], fraction=0.4), case(dtype="float32", n=4, m=8))
    assert kernel_tables.main([str(path)]) == 0
    page = (tmp_path / "kernels.md").read_text(encoding="utf-8")
    names = ("fraction-by-group", "fraction-by-size", "time-against-alternatives")
    texts = {name: (tmp_path / "figures" / f"kernels-{name}.svg").read_text(encoding="utf-8") for name in names}
    for name, text in texts.items():
        ElementTree.fromstring(text)
        assert f"(figures/kernels-{name}.svg)" in page
    assert "4:8" in texts["fraction-by-group"]
    assert "bfloat16 magnitude 0.40 to 0.93." in texts["fraction-by-size"]  # 2:4 alone, both sizes
    # The copy reads and writes 268 MB at 4,000 GB/s.
    assert "bfloat16 2:4 copy 0.134 ms" in texts["time-against-alternatives"]
    assert "topk and scatter 400 ms" in texts["time-against-alternatives"]


def test_an_alternative_with_another_result_is_marked(results, case, tmp_path):
    for same in (True, False):
        tile = {"torch's 2:4 tile": {"seconds": 0.4, "same_values": same, "times_as_long": TIMES_AS_LONG}}
        assert kernel_tables.main([str(results(case(instead=tile)))]) == 0
        assert ("differ from the reference" in (tmp_path / "kernels.md").read_text(encoding="utf-8")) is not same


def test_a_kernel_that_ran_in_plain_torch_is_marked(results, case, tmp_path):
    assert kernel_tables.main([str(results(case(backend="reference")))]) == 0
    assert "Computed by plain torch" in (tmp_path / "kernels.md").read_text(encoding="utf-8")


def broken(change):
    def apply(content):
        change(content["benchmarks"][0]["extra_info"], content)

    return apply


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (broken(lambda row, all_: row.pop("seconds")), "benchmark 1: has no 'seconds'"),
        (broken(lambda row, all_: row.update(seconds=0)), "benchmark 1: 'seconds' is 0; expected a number above 0"),
        (broken(lambda row, all_: row.update(gb_per_s=float("nan"))), "'gb_per_s' is nan"),
        (broken(lambda row, all_: row.update(n="2")), "'n' is '2', which has the wrong type"),
        (broken(lambda row, all_: row.update(m=True)), "'m' is True, which has the wrong type"),
        (broken(lambda row, all_: row.update(shape=[1, "x"])), "'shape' is [1, 'x']"),
        (broken(lambda row, all_: row["fraction_of_copy"].pop("low")), "fraction_of_copy: has no 'low'"),
        (broken(lambda row, all_: row.update(instead={"topk": 3})), "topk: has no 'seconds'"),
        (broken(lambda row, all_: row.update(instead=[3])), "'instead' is [3], which has the wrong type"),
        (
            broken(lambda row, all_: all_.pop("kernel_benchmarks")),
            "was not written by benchmarks/kernels/bench_kernels.py",
        ),
        (broken(lambda row, all_: all_.pop("benchmarks")), "is not a file of pytest-benchmark"),
        (broken(lambda row, all_: all_.update(benchmarks=[])), "has no benchmarks"),
        (broken(lambda row, all_: all_["kernel_benchmarks"].update(format=2)), "has format 2"),
        (broken(lambda row, all_: all_["kernel_benchmarks"]["provenance"].pop("hardware_id")), "no 'hardware_id'"),
    ],
)
def test_a_wrong_file_gets_one_line_and_nothing_is_written(results, case, tmp_path, capsys, change, line):
    path = results(case())
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    assert kernel_tables.main([str(path)]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith(f"kernel_tables: error: {path}")
    assert line in errors
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("text", "line"), [("{", "is not JSON"), ("[]", "is not a file of pytest-benchmark"), (None, "No such file")]
)
def test_foreign_files_get_one_line(tmp_path, capsys, text, line):
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(text)
    assert kernel_tables.main([str(path)]) == 2
    errors = capsys.readouterr().err
    assert line in errors
    assert errors.count("\n") == 1


def test_a_typed_mistake_is_named(capsys, results, case):
    assert kernel_tables.main([str(results(case())), "--oot", "x"]) == 2
    assert "did you mean '--out'?" in capsys.readouterr().err


def test_repeated_cases_and_mixed_hardware_are_refused(results, case):
    first = results(case())
    with pytest.raises(UsageError, match=r"magnitude occurs also in .*results\.json"):
        read([first, results(case(), name="again.json")])
    with pytest.raises(UsageError, match="occurs twice"):
        read([results(case(), case(), name="double.json")])
    other = results(case(m=8), name="other.json", provenance={"hardware_id": "h7654321"})
    with pytest.raises(UsageError, match="measured on other hardware than"):
        read([first, other])
