"""Ranks of a trial: the processes of a data-parallel training, which start and end together."""

import os

from suite.trials.process import rank_of_environment


def in_allocation() -> bool:
    """Return whether several commands were started together, and this process is one of them or a trial of one."""
    variables = os.environ
    by_torchrun = "LOCAL_RANK" in variables and int(variables.get("WORLD_SIZE", "1")) > 1
    # A batch script has SLURM_NTASKS too. Only `srun` sets the number of tasks of a step.
    by_srun = "TORCHELASTIC_RUN_ID" not in variables and int(variables.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    return (by_torchrun or by_srun) and rank_of_environment() is None
