"""The packages of the project whose common names a folder of the user may hide."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

from suite.errors import UsageError

OWN = ("kernels", "methods", "reports", "tasks")


@functools.cache
def check_own_packages() -> None:
    """Check that Python finds the project's own packages, and not others of the same names.

    Raises:
        UsageError: A file or folder of the user's hides one; the message names both.
    """
    root = Path(__file__).resolve().parents[1]
    for name in OWN:
        specification = importlib.util.find_spec(name)
        places = [] if specification is None else [*(specification.submodule_search_locations or ())]
        origin = specification.origin if specification is not None else None
        if root / name not in [Path(place).resolve() for place in places]:
            found = origin or (places[0] if places else "nothing")
            raise UsageError(
                f"import {name}: {found} hides the suite's own {root / name / '__init__.py'}; rename yours, or start "
                "the program in another folder"
            )
