"""What a report says about the choice of defaults."""

import pytest

from reports.content.provenance import provenance_section
from reports.data.records import Records, Trial
from suite import registry
from suite.runs.provenance import tuning


def defaults_chosen(tmp_path, card):
    trial = Trial({"trial_id": "a", "method": "sdgp", "status": "done"}, {}, provenance={"method": card})
    section = provenance_section(Records(tmp_path, (trial,), {}, "a table"))
    (table,) = (table for table in section.tables if table.columns[0].title == "Method")
    assert table.columns[-1].title == "Defaults chosen"
    return table.rows[0][-1].text


@pytest.mark.parametrize(
    ("preset", "expected"),
    [
        ("quick", "quick: 8 trials on validation images ("),
        ("paper", "paper: published values, 0 trials ("),
    ],
)
def test_it_shows_what_the_defaults_of_the_preset_cost(tmp_path, preset, expected):
    card = {"source": "nowhere", "tuning": tuning(registry.get("method", "prunetrain"), preset)}
    assert defaults_chosen(tmp_path, card).startswith(expected)


@pytest.mark.parametrize("card", [{}, {"tuning": []}, {"tuning": "many"}])
def test_a_trial_that_did_not_record_it_has_no_claim(tmp_path, card):
    assert "0 trials" not in defaults_chosen(tmp_path, card)
