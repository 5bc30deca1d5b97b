"""Groups of trials that may be compared, and the order of methods."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

import pytest
from matplotlib.colors import to_rgb

from reports.content.build import build
from reports.data.records import colour_of, looks, read
from reports.figures import svg

pytestmark = pytest.mark.usefixtures("without_figures")


def order(group: Any) -> list[str]:
    """Return the methods of a group's first table."""
    return [row[0].text for row in group.tables[0].rows]


@pytest.mark.parametrize(("name", "value"), [("threads", 1), ("torch", "2.16"), ("hardware_id", "99999999")])
def test_times_of_other_machines_threads_or_versions_are_never_mixed(suite: Any, name: str, value: Any) -> None:
    suite.add_all(("dense", "sdgp"), threads=2, torch="2.15")
    suite.add_all(("prunetrain",), **{"threads": 2, "torch": "2.15", name: value})
    (group,) = build(read(suite.write())).groups
    assert order(group) == ["dense", "sdgp[n=2,m=4]", "prunetrain[ratio=0.2]"]
    assert [row[5].text == "–" for row in group.tables[0].rows] == [False, False, True]  # no dense time to compare with
    assert "), threads 2, arithmetic flush, torch 2.15," in group.subtitle


@pytest.mark.parametrize(("parameters", "recipe", "shown"), [
    ({"image_size": 96}, {}, "batch size 128, images of 96x96 pixels, device cpu"),
    ({"image_size": 224}, {"train_sizes": [160, 192]},
     "images of 224x224 pixels, training images of 160x160 then 192x192 pixels, device cpu"),
    ({"image_size": None}, {"train_sizes": []}, "batch size 128, device cpu"),
    ({"image_size": "large"}, {}, "batch size 128, device cpu"),
])  # fmt: skip
def test_the_sizes_of_images_are_said_where_task_or_recipe_name_them(
    suite: Any, parameters: Any, recipe: Any, shown: str
) -> None:
    suite.add("dense", 0, accuracy=70.0, time=1.0, recipe=recipe, task_parameters=parameters)
    (group,) = build(read(suite.write())).groups
    assert shown in group.subtitle


def test_trials_of_an_edited_plugin_are_no_seeds_of_one_method(suite: Any) -> None:
    suite.add_all(("dense",), seeds=2)
    for seed, digest in enumerate(("a" * 64, "b" * 64)):
        file = {"path": "~/plugin.py", "sha256": digest}
        suite.add("sdgp", seed, accuracy=70.0, time=300.0, spec={"defined_by": {"method": file}})
    (group,) = build(read(suite.write())).groups
    labels = [row[0].text for row in group.tables[0].rows]
    assert len(labels) == len(set(labels)) == 3
    assert sum(" file " in one for one in labels) == 2


def test_trials_with_subnormal_numbers_are_a_group_of_their_own_and_named(suite: Any) -> None:
    suite.add_all(("dense", "sdgp"))
    suite.add_all(("dense", "sdgp"), arithmetic="ieee")
    flushed, other = build(read(suite.write())).groups
    assert "arithmetic flush" in flushed.title
    assert "arithmetic ieee" in other.title


def test_controls_have_a_colour_of_their_own() -> None:
    found = looks(["sdgp", "sdgp[mode=random]", "dense[repeat=2]"], {"sdgp[mode=random]", "dense[repeat=2]"})
    assert [found[name].colour for name in ("dense", "sdgp", "sdgp[mode=random]", "dense[repeat=2]")] == [
        0, colour_of("sdgp"), -1, -1,
    ]  # fmt: skip
    assert len({(one.marker, one.dash) for one in found.values()}) == 4
    assert svg.colour(-1) not in {svg.colour(index) for index in range(9)}


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour))
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


def test_colours_of_12_methods_with_12_variants_differ_and_are_seen_on_both_grounds() -> None:
    names = [f"method{method}[n={variant}]" for method in range(12) for variant in range(12)]
    colours = {svg.colour(looks(names)[name].colour) for name in names}
    assert len(colours) == len(names)
    style = (files("reports.render") / "templates/style.css").read_text()
    light, dark = (luminance(ground) for ground in re.findall(r"--ground: (#\w+)", style))
    for pair in ((luminance(colour), ground) for colour in colours for ground in (light, dark)):
        assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 3
