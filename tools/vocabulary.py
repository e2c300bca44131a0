"""Check names and prose against the project's vocabulary: `python -m tools.vocabulary [PATH ...]`, part of `make lint`.

Five rules: no banned word in an identifier, none in a docstring, comment or message; no docstring that begins with a
fragment; within one distribution package no module stem in two folders and no public class name twice. Prints one line
per finding, `file:line: message`, and exits with 1 if there is any. docs/glossary.md has the words to use instead.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("mmrl", "kernels/mmrl_kernels", "shapeworld/mmrl_shapeworld", "tools", "benchmarks", "tests")
BANNED_NAMES = re.compile(
    r"told|asked|unasked|said|misfits?|lineup|foresee|foreseeing|foresight|twins?|praised|watched|parted|parting|why|due"
    r"|contenders?|entrant|refuse|refusals?|lanes?|given|shown|held|mend|oversleep"
)
"""Parts of identifiers, between underscores."""
BANNED_PROSE = re.compile(
    r"\b(told(?! apart)|asked|misfits?|lineup|foresee\w*|twins?|praised|lanes?|due(?! to)|so many|whatever|nobody"
    r"|somebody|anybody|of (?:its|his|their|one's|his or her) own)\b",
    re.IGNORECASE,
)
FRAGMENT = re.compile(r"(?:What|How|Whether|Of|One|All that|Where|Which|Who)\b")
STEMS_BY_TOPIC = (
    "mmrl/cli",
    "mmrl/config",
    "mmrl/benchmarks/readers",
    "kernels/mmrl_kernels/ops",
    "tools",
    "benchmarks",
    "tests",
)
"""Folders whose files are named after a command, a section, a data set, a part of an op, or the module that they test:
stems may recur there."""
QUOTING = (Path("tools/vocabulary.py"), Path("tests/test_vocabulary.py"))
"""Files that quote banned words, whose prose is not checked."""


def findings(paths: list[Path], base: Path = Path()) -> Iterator[str]:
    """Yield one line for every violation in the Python files below `paths`, which lie in the checkout `base`."""
    stems: dict[tuple[str, str], list[Path]] = defaultdict(list)
    classes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for path in sorted(file for root in paths for file in ([root] if root.is_file() else root.rglob("*.py"))):
        place = path.absolute().relative_to(base.absolute())
        source, package = path.read_text(encoding="utf-8"), place.parts[0]
        tree = ast.parse(source)
        if not path.stem.startswith("__") and not place.as_posix().startswith(STEMS_BY_TOPIC):
            stems[package, path.stem].append(path)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[package, node.name].append(f"{path}:{node.lineno}")
        yield from _identifiers(path, tree)
        yield from _prose(path, source, tree, quoting=place in QUOTING)
    for (_, stem), files in stems.items():
        if len(files) > 1:
            yield f"{files[1]}:1: the module name {stem} is also that of {files[0]}"
    for (_, name), places in classes.items():
        if len(places) > 1:
            yield f"{places[1]}: the class name {name} is also defined at {places[0]}"


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring: of modules, classes, functions, and strings below an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for index, statement in enumerate(body):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if not isinstance(text := statement.value.value, str):
                continue
            if index == 0 or isinstance(body[index - 1], (ast.Assign, ast.AnnAssign)):
                yield statement.lineno, text


def _identifiers(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names = [node.name]
        elif isinstance(node, ast.arg):
            names = [node.arg]
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names = [node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names = [node.attr]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names = [node.name]
        for name in names:
            parts = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_")
            if words := ", ".join(part for part in parts if BANNED_NAMES.fullmatch(part)):
                yield f"{path}:{getattr(node, 'lineno', 1)}: {name}: {words} is not a term of the field"


def _prose(path: Path, source: str, tree: ast.Module, quoting: bool) -> Iterator[str]:
    for line, text in docstrings(tree):
        if FRAGMENT.match(text.strip()):
            yield f"{path}:{line}: a docstring begins with a fragment: {text.strip()[:50]!r}"
    if quoting:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)):
            for found in BANNED_PROSE.finditer(token.string):
                line = token.start[0] + token.string[: found.start()].count("\n")
                yield f"{path}:{line}: {found[0]!r} in prose or a message: use the field's term"


def main(arguments: list[str]) -> int:
    """Print the findings below the paths given, or below all roots; return the exit code."""
    lines = list(findings([Path(each) for each in arguments or ROOTS]))
    print("\n".join(lines) or "The vocabulary holds.")
    if lines:
        print(f"{len(lines)} findings")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
