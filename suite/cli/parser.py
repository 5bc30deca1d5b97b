"""The parser of all verbs: each option at most once, no abbreviations, and the nearest name for a wrong one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from suite.errors import UsageError, nearest

LINE_WIDTH = 140  # characters, where the output is not a terminal


def program_name() -> str:
    """Return the command that started this program: `pdt` or `python run_suite.py`."""
    return "python run_suite.py" if Path(sys.argv[0]).name == "run_suite.py" else "pdt"


def whole(least: int, most: int) -> Callable[[str], int]:
    """Return the type of an option whose value is an integer in this range."""

    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError
        return number

    read.__name__ = f"integer from {least} to {most}"  # argparse names the type in its message
    return read


class _StoreOnce(argparse.Action):
    """Store an option's value and refuse a second one. Argparse alone would keep the last."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        assert isinstance(parser, Parser)
        if option is not None and self.dest in parser.given:
            hint = "; lists are separated by commas, without spaces" if self.dest in parser.lists else ""
            parser.error(f"{option} is given twice{hint}")
        parser.given.add(self.dest)
        setattr(namespace, self.dest, values)


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that raises `UsageError` and suggests the nearest option.

    Attributes:
        given: Destinations of the options that were read so far.
        lists: Destinations of the options whose values are lists.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **keywords)
        self.given: set[str] = set()
        self.lists: tuple[str, ...] = ()
        self.register("action", None, _StoreOnce)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: An argument is unknown, or an option is given more than once.
        """
        if empty := [text for text in arguments if text.startswith("--") and text.endswith("=--")]:
            raise UsageError(f"{empty[0]}: expected a value")  # argparse would store an empty list
        self.given.clear()
        namespace, unknown = self.parse_known_args(arguments)
        if unknown:
            # Names are compared without dashes, which would make any two options similar.
            options = [text[2:] for action in self._actions for text in action.option_strings if text[:2] == "--"]
            typed = unknown[0].partition("=")[0]
            if typed.startswith("-"):
                hint = nearest(typed.lstrip("-"), options).replace("mean '", "mean '--")
                raise UsageError(f"no option is called '{typed}'{hint}")
            is_field = typed.startswith("recipe.")
            hint = "repeat --set for each field" if is_field else "lists are separated by commas, without spaces"
            raise UsageError(f"unexpected argument '{typed}'; {hint}")
        return namespace
