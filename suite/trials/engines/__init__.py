"""Where trials run. An engine is registered as `@register("engine", name)` and has `run(trials, progress)`."""
