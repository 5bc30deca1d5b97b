"""Where trials run. `@register("engine", name)` registers an engine, which has `run(trials, progress)`."""
