"""Content of `time.json` with time passes that were not measured."""


def pairs(ratio, dense=0.1, count=3):
    """Return pairs of seconds with this ratio."""
    return [[ratio * dense, dense]] * count


def stage(ratio, epoch=1, steps=100, dense=0.1, size=None):
    """Return a stage whose steps have this ratio in both states."""
    own = pairs(ratio, dense)
    return {"epoch": epoch, "steps": steps, "image_size": size, "start": own, "end": own}


def one_pass(ratio, trial="some-trial", twice=1.0, number=0, **changed):
    """Return a pass with this ratio as JSON."""
    order = {"place": 1, "built_first": "method", "steps_first": "dense"}
    return {
        "trial": trial, "stages": [stage(ratio, epoch) for epoch in (1, 4)], "dense": [{"steps": 200}],
        "reconfigure_s": 0.0, "twice": pairs(twice), "order": {**order, "number": number}, "load": 0.1, "threads": 1,
        "provenance": {"time_utc": "2026-01-01T00:00:00Z"}, **changed,
    }  # fmt: skip


def time_json(key, **methods):
    """Return the file for one group, with the ratios of the passes of each method."""
    entries = {
        name: {"passes": [one_pass(ratio, number=number) for number, ratio in enumerate(ratios)]}
        for name, ratios in methods.items()
    }
    return {"version": 1, "groups": [{"key": key, "methods": entries}]}
