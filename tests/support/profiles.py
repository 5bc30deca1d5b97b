"""Entries of `profile.json` with numbers that tests choose."""


def product(dense, effective=1.0, executed=1.0, seconds=0.0, bound_s=0.5):
    """Return a product whose effective and executed FLOPs are shares of the dense ones."""
    return {
        "dense": dense,
        "current": dense,
        "effective": dense * effective,
        "executed": dense * executed,
        "seconds": seconds,
        "bound": {"bytes": 100.0, "seconds": bound_s, "by": "bytes"},
    }


def step(dgrad_s=3.0, wgrad_s=4.0, effective=1.0, executed=1.0, pruning_s=0.0, clocks=1.01, batch_size=16):
    """Return a step with one layer: its forward takes 2 s, and the parts besides products and pruning 1 s each."""
    parts = {"forward": 2.0, "dgrad": dgrad_s, "wgrad": wgrad_s, "pruning": pruning_s}
    parts |= dict.fromkeys(("normalization", "optimizer", "input", "network", "rest"), 1.0)
    total = sum(parts.values())
    layer = {
        "name": "body.conv",
        "kind": "conv",
        "in_channels": 8,
        "out_channels": 16,
        "kernel": [3, 3],
        "input": [4, 4],
        "output": [4, 4],
        "backend": "torch",
        "products": {
            "forward": product(1000.0, seconds=2.0),
            "dgrad": product(1000.0, effective, executed, dgrad_s),
            "wgrad": product(1000.0, seconds=wgrad_s),
        },
        "pruning_s": pruning_s,
    }
    return {
        "batch_size": batch_size,
        "rounds": 20,
        "step_s": total / clocks,
        "clocked_s": total,
        "clocks": {"ratio": clocks, "low": clocks, "high": clocks},
        "parts": parts,
        "layers": [layer],
    }


def stage(method, dense=None, ratio=None, epoch=1):
    """Return a stage."""
    interval = None if ratio is None else {"ratio": ratio, "low": ratio, "high": ratio}
    return {"epoch": epoch, "steps": 12, "method": method, "dense": dense, "ratio": interval}


def profile(*stages):
    """Return the entry of a method."""
    return {
        "trial": "t",
        "stages": list(stages),
        "stages_of_trial": len(stages),
        "machine": {"macs_per_s": 1e9, "copies": [{"bytes": 1024, "bytes_per_s": 2e9}]},
        "execution": "eager",
        "dtype": "float32",
        "load": 0.1,
        "threads": 2,
        "provenance": {"busy_cores": 0.1},
    }
