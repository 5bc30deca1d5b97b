"""The names that a file registers, read from its decorators without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from suite.errors import UsageError, nearest

KINDS = ("method", "task", "model", "engine", "callback", "reproduction")
_DECORATORS = ("register", "register_family", "register_collection")  # of `suite.registry`


@dataclass(frozen=True)
class Entry:
    """A registered name and where it comes from.

    Attributes:
        kind: One of `KINDS`.
        name: Registered name; that of a collection ends in `/`.
        origin: Name of a module, value of an entry point, or path of a plugin.
        summary: First line of the docstring.
        family: Whether the name was registered with others by `register_family`; all have the same summary.
        collection: Whether this is a collection, whose members are typed as `COLLECTION/NAME`.
    """

    kind: str
    name: str
    origin: str
    summary: str
    family: bool = False
    collection: bool = False

    @property
    def typed(self) -> str:
        """What is typed: the name, or `COLLECTION/NAME`."""
        return f"{self.name}NAME" if self.collection else self.name


def read_entries(path: Path, origin: str, text: str) -> list[Entry]:
    """Read the entries of all decorators of `suite.registry` in the text of a file, without running it.

    Raises:
        UsageError: If the arguments of a decorator are not literal strings, or the kind is unknown.
    """
    tree = ast.parse(text, str(path))
    found = []
    for node in tree.body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            continue
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", None)
            if name not in _DECORATORS or not isinstance(decorator, ast.Call):
                continue
            family, collection = name == "register_family", name == "register_collection"
            where = f"{path}:{decorator.lineno}"
            literals = [argument.value for argument in decorator.args if isinstance(argument, ast.Constant)]
            texts = [literal for literal in literals if isinstance(literal, str)]
            if len(texts) != len(decorator.args) or not (len(texts) >= 2 if family else len(texts) == 2):
                wanted = "a kind and names, as literal strings" if family else "two literal strings, a kind and a name"
                raise UsageError(f"{where}: {name} needs {wanted}")
            if texts[0] not in KINDS:
                raise UsageError(f"{where}: cannot register a '{texts[0]}'{nearest(texts[0], KINDS)}")
            summary = (ast.get_docstring(node) or "").split("\n", 1)[0]
            end = "/" if collection else ""
            found += [Entry(texts[0], own + end, origin, summary, family, collection) for own in texts[1:]]
    return found
