"""Do the tests notice mistakes? Make mistakes in a copy of the tree, one at a time, and run the tests next to each.

    python tools/mutations.py --list tools/mutations.json
    python tools/mutations.py --count 30 --seed 0 --first 0 --save tools/mutations.json

A mutation changes one node in the body of a function. Its tests are the fast ones of the files that import the module,
directly or through a helper of the tests; if there are none, of the files that import one of its importers. If they
pass the time limit, or end without naming a test, this counts as noticed only if they pass without the mutation.

A mutation is known by its subject, function, kind and line, so that a saved list finds it again where files were moved.
It is gone if its function was renamed or deleted, or its line rewritten.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# Files by subject. A file belongs to the first subject that lists it.
SUBJECTS = {
    "kernels": ["kernels/**/*.py"],
    "statistics": ["reports/data/*.py", "suite/engine/cost/interleaved.py"],
    "ledger and FLOPs": ["suite/engine/cost/*.py"],
    "surgery": ["suite/engine/network/channels/*.py"],
    "resume": ["suite/engine/training/**/*.py", "suite/trials/*.py", "suite/trials/folder/*.py"],
}
OUTCOMES = ("noticed", "not noticed", "gone", "not tried")
MESSAGES = {"log", "logger", "logging", "print", "warnings"}  # calls that only tell a person something
SWAPS = {"<": "<=", ">": ">=", "==": "!=", "is": "is not", "in": "not in", "and": "or", "+": "-", "*": "/"}
SWAPS |= {other: one for one, other in SWAPS.items()}


class Mutation(NamedTuple):
    """What a mutation is known by."""

    subject: str
    function: str
    kind: str
    line: str


class Place(NamedTuple):
    """Where a mutation is: on line `number` of a file, `new` replaces the bytes from `start` to `end`."""

    path: str
    number: int
    start: int
    end: int
    new: bytes

    def change(self, source: bytes) -> bytes:
        """Return the source of the file with the mutation."""
        return source[: self.start] + self.new + source[self.end :]


def all_mutations(root: Path) -> dict[Mutation, list[Place]]:
    """Return the mutations of all subjects; those of a line that holds, say, two numbers look the same."""
    subjects: dict[Path, str] = {}
    for subject, glob in ((subject, glob) for subject, globs in SUBJECTS.items() for glob in globs):
        paths = sorted(root.glob(glob))
        if not paths:
            raise FileNotFoundError(f"no file is {glob}, which SUBJECTS lists")
        subjects = {**dict.fromkeys(paths, subject), **subjects}
    found: dict[Mutation, list[Place]] = defaultdict(list)
    for path, subject in sorted(subjects.items()):
        source = path.read_bytes()
        starts = [0, *(newline.end() for newline in re.finditer(b"\n", source))]
        for node, function in _in_bodies(ast.parse(source)):
            for kind, start, end, new in _changes(node, source, starts):
                number = source.count(b"\n", 0, start) + 1
                line = source[starts[number - 1] :].partition(b"\n")[0].decode().strip()
                place = Place(path.relative_to(root).as_posix(), number, start, end, new)
                found[Mutation(subject, function, kind, line)].append(place)
    return found


def _in_bodies(node: ast.AST, name: str = "", inside: bool = False) -> Iterator[tuple[ast.AST, str]]:
    """Yield the nodes in the bodies of functions, with the functions' names, but for messages, assertions and types."""
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    match node:
        case ast.Assert() | ast.Raise() | ast.JoinedStr() | ast.FunctionDef(name="__repr__"):
            return
        case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return
        case ast.Call() | ast.Expr(value=ast.Call()) if re.split(r"\W", ast.unparse(node))[0] in MESSAGES:
            return
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            name, inside = f"{name}.{node.name}".lstrip("."), inside or not isinstance(node, ast.ClassDef)
            children = [*node.body]
        case ast.AnnAssign(value=value):
            children = [value] if value else []
        case _ if inside:
            yield node, name
    for child in children:
        yield from _in_bodies(child, name, inside)


def _changes(node: ast.AST, source: bytes, starts: list[int]) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield the changes of a node: the kind, where the bytes that are replaced start and end, and the new ones."""

    def span(one: ast.AST) -> tuple[int, int]:
        first, last = ((getattr(one, f"{end}lineno"), getattr(one, f"{end}col_offset")) for end in ("", "end_"))
        return starts[first[0] - 1] + first[1], starts[last[0] - 1] + last[1]

    kind, operands = "", list[ast.expr]()
    match node:
        case ast.Compare(left=left, comparators=others):
            kind, operands = "comparison", [left, *others]
        case ast.BoolOp(values=values):
            kind, operands = "and-or", values
        case ast.BinOp(left=left, right=right) if not _is_text(left) and not _is_text(right):
            kind, operands = "arithmetic", [left, right]
        case ast.UnaryOp(op=ast.Not()):
            yield "not", *span(node), source[span(node)[0] + len("not") : span(node)[1]].lstrip()
        case ast.Constant(value=bool(value)):
            yield "flag", *span(node), str(not value).encode()
        case ast.Constant(value=int(value) | float(value)) if value + 1 != value:
            yield "number", *span(node), repr(value + 1).encode()
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "statement", *span(node), b"pass"
    for (_, start), (end, _) in pairwise(map(span, operands)):
        between = source[start:end]
        if new := SWAPS.get(between.decode().strip("() \\\n")):
            start += len(between) - len(between.lstrip(b"() \\\n"))
            yield kind, start, start + len(between.strip(b"() \\\n")), new.encode()


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)))


def drawn(found: dict[Mutation, list[Place]], count: int, seed: int) -> list[Mutation]:
    """Draw mutations, equally many of each subject, from those that look like no other."""
    chance = random.Random(seed)
    chosen: list[Mutation] = []
    for index, subject in enumerate(SUBJECTS):
        own = [one for one, places in found.items() if one.subject == subject and len(places) == 1]
        share = count // len(SUBJECTS) + (index < count % len(SUBJECTS))
        chosen += chance.sample(own, min(share, len(own)))
    return chosen


def saved(file: str) -> list[Mutation]:
    """Read a list of mutations."""
    try:
        return [Mutation(**one) for one in json.loads(Path(file).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{file} is not a list of mutations: {error}") from error


class Copy:
    """A copy of the files that git tracks, or does not ignore, in which tests run."""

    def __init__(self, root: Path, folder: Path, seconds: float) -> None:
        self.tree, self.cache, self.said = folder / "tree", folder / "cache", folder / "said.txt"
        self.seconds = seconds
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        files = [file for file in listed.stdout.split("\0") if (root / file).is_file()]
        for file in files:
            (self.tree / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, self.tree / file)
        sources = [file for file in files if file.endswith(".py")]
        self.helpers = {file for file in sources if re.match(r"tests/(.*/)?(?!test_)[^/]*$", file)}
        modules = {re.sub(r"(/__init__)?\.py$", "", file).replace("/", "."): file for file in sources}
        modules |= {Path(file).stem: file for file in self.helpers}  # pytest puts their folders on the path
        self.imports = {file: {modules[one] for one in _imported(root / file) if one in modules} for file in sources}
        conftest = root / "tests" / "conftest.py"  # it lists the slowest files of tests
        self.listed_as_slow = conftest.read_text(encoding="utf-8") if conftest.is_file() else ""
        self.unchanged: dict[tuple[str, ...], str] = {}  # how files of tests end without a mutation

    def outcome(self, place: Place, check: bool) -> str:
        """Run the tests of a mutation, and return one of OUTCOMES with what there is to say about it."""
        tests, file = self.tests(place.path), self.tree / place.path
        if not tests:
            return "not noticed, for no test imports the module"
        if check and (end := self._end_unchanged(tests)):
            return f"not tried, for without it too its tests end by {end}"
        source = file.read_bytes()
        file.write_bytes(place.change(source))
        end = self._end(tests)
        file.write_bytes(source)
        if not end:
            return "not noticed"
        if not end.startswith("tests/") and (unchanged := self._end_unchanged(tests)):
            return f"not tried to the end, for without it too its tests end by {unchanged}"
        return f"noticed by {end}"

    def tests(self, path: str) -> tuple[str, ...]:
        """Return the files of tests for a module, the most likely to notice a mutation first."""
        found = level = {path}
        while level:
            level = self._importers(found)
            while helpers := level & self.helpers - found:  # they belong to the tests that import them
                found, level = found | helpers, level | self._importers(helpers)
            if tests := [file for file in level if re.match(r"tests/(.*/)?test_[^/]*$", file)]:
                return tuple(sorted(tests, key=lambda file: self._order(file, path)))
            level = level - found
            found = found | level
        return ()

    def _order(self, test: str, path: str) -> tuple[bool, bool, bool, bool, int, str]:
        """Return what orders files of tests: first those about the module, last those that take long or test much."""
        named = Path(path).stem in Path(test).stem
        near = Path(test).parent.name in path.split("/")
        imports = self.imports[test]
        slow = f'"{test.removeprefix("tests/")}"' in self.listed_as_slow
        return not named, slow, not near, path not in imports, len(imports), test

    def _importers(self, found: set[str]) -> set[str]:
        return {file for file, imports in self.imports.items() if imports & found}

    def _end_unchanged(self, tests: tuple[str, ...]) -> str:
        if tests not in self.unchanged:
            self.unchanged[tests] = self._end(tests)
        return self.unchanged[tests]

    def _end(self, tests: tuple[str, ...]) -> str:
        """Run files of tests, and return the first test that fails, what else ended them, or nothing if they pass."""
        compiled = Path(os.environ.get("PDT_CACHE", "~/.cache/pdt-kernels")).expanduser()
        shutil.rmtree(self.cache, ignore_errors=True)  # a mutation may have damaged it
        if compiled.is_dir():
            shutil.copytree(compiled, self.cache)
        # Without bytecode: where a file changes twice in a second, Python would take the first for the second.
        changed = {"PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1", "PDT_CACHE": str(self.cache)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-n", "0", *tests]
        with self.said.open("w") as out:
            process = subprocess.Popen(
                command, cwd=self.tree, env=os.environ | changed, stdout=out, stderr=out, start_new_session=True
            )
            try:
                status = process.wait(timeout=self.seconds)
            except subprocess.TimeoutExpired:
                return f"the limit of {self.seconds:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError):  # there may be processes that tests started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status in (0, 5):  # 5: no test of these files is fast
            return ""
        said = self.said.read_text(encoding="utf-8", errors="replace")
        named = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", said, re.MULTILINE)
        return named[1] if named else f"exit status {status} of pytest"


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))


def main(arguments: list[str]) -> int:
    """Try the mutations, and print what became of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=30, help="number of mutations to draw")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw")
    parser.add_argument("--list", metavar="FILE", type=saved, help="mutations to find again, in place of a draw")
    parser.add_argument("--save", metavar="FILE", type=Path, help="where to save the list of the mutations")
    parser.add_argument("--first", metavar="K", type=int, help="try only the first K")
    parser.add_argument("--seconds", type=float, default=90, help="limit of a run of tests")
    parser.add_argument("--minutes", type=float, default=45, help="begin no mutation whose limit would end later")
    parser.add_argument("--check", action="store_true", help="run each set of tests without a mutation first")
    chosen = parser.parse_args(arguments)
    deadline = time.monotonic() + 60 * chosen.minutes
    try:
        found = all_mutations(ROOT)
    except FileNotFoundError as error:
        parser.error(str(error))
    mutations = drawn(found, chosen.count, chosen.seed) if chosen.list is None else chosen.list
    if chosen.save:
        text = json.dumps([one._asdict() for one in mutations], indent=2, ensure_ascii=False)
        chosen.save.write_text(text + "\n", encoding="utf-8")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    with tempfile.TemporaryDirectory(prefix="pdt-mutations-", ignore_cleanup_errors=True) as folder:
        copy = Copy(ROOT, Path(folder), chosen.seconds)
        for one in mutations[: chosen.first]:
            outcome, where, change = "gone", "-", one.line
            for place in found.get(one, [])[:1]:
                in_time = time.monotonic() + chosen.seconds <= deadline
                outcome = copy.outcome(place, chosen.check) if in_time else "not tried, for no time is left"
                changed = place.change((ROOT / place.path).read_bytes()).split(b"\n")[place.number - 1]
                where, change = f"{place.path}:{place.number}", f"{one.line}  ->  {changed.decode().strip()}"
            counts[one.subject][next(name for name in OUTCOMES if outcome.startswith(name))] += 1
            print(f"{outcome}  {where}  {one.subject}  {one.function}  {one.kind}:  {change}", flush=True)
    for subject, count in counts.items():
        print(f"{subject}: " + ", ".join(f"{count[name]} {name}" for name in OUTCOMES))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
