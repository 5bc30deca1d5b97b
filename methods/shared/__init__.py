"""Former names of the modules of `methods.masks`, so that plugins written for them load unchanged."""

import sys

from methods.masks import distributions, masking, schedules, scores, structures

for _module in (distributions, masking, schedules, scores, structures):
    sys.modules[f"{__name__}.{_module.__name__.rpartition('.')[2]}"] = _module
