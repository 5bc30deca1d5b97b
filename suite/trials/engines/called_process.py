"""The process in which `suite.trials.engines.subprocess_call` calls a function.

python -m suite.trials.engines.called_process MODULE:FUNCTION < arguments.json
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys

from suite import registry
from suite.engine.cost.torch_hardware import use_threads_of_environment
from suite.subnormals import use_arithmetic
from suite.trials.engines.exit_with_parent import die_with
from suite.trials.provenance import collect


def main() -> None:
    """Call the function that the command line names and print its result as the last line."""
    module, _, name = sys.argv[1].partition(":")
    asked = json.loads(sys.stdin.read())
    if sys.platform == "linux" and not die_with(asked["parent"]):
        os.kill(os.getpid(), signal.SIGKILL)
    use_arithmetic(asked["arithmetic"])  # before torch starts threads
    for plugin in asked["plugins"]:
        registry.load_plugin(plugin)
    use_threads_of_environment()
    facts = collect(asked["arguments"]["device"])
    hardware = facts["hardware"]
    on = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['threads']} threads"
    where = f"{on}; other programs kept {facts['busy_cores']:.1f} cores busy as it began"
    busy = float(facts["busy_cores"])
    value = getattr(importlib.import_module(module), name)(**asked["arguments"])
    print(json.dumps({"value": value, "where": where, "busy_cores": busy}))


if __name__ == "__main__":
    main()
