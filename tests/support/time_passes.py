"""Content of `time.json` with time passes that were not measured."""


def one_pass(ratio, trial="some-trial", **changed):
    """Return a pass with this ratio as JSON."""
    interval = {"ratio": ratio, "low": 0.99 * ratio, "high": 1.01 * ratio}
    stages = [{**interval, "epoch": epoch, "steps": 100, "pairs": 15} for epoch in (1, 4)]
    twice = {"ratio": 1.0, "low": 0.99, "high": 1.01}
    return {
        **interval, "trial": trial, "pairs": 30, "stages": stages, "dense_steps": 200, "reconfiguration": 0.0,
        "dense_twice": twice, "load": 0.1, "threads": 1, "provenance": {"time_utc": "2026-01-01T00:00:00Z"}, **changed,
    }  # fmt: skip


def time_json(key, **methods):
    """Return the file for one group, with the ratios of the passes of each method."""
    entries = {name: {"passes": [one_pass(ratio) for ratio in ratios]} for name, ratios in methods.items()}
    return {"version": 1, "groups": [{"key": key, "methods": entries}]}
