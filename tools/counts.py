"""Count what a reader meets: files, lines, import cycles, vocabulary findings, files per component.

    python -m tools.counts [REVISION]      # REVISION: a commit to count instead of the working tree

Every number is computed from the sources alone, so that a revision of the past can be counted by the same rules.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from tools.vocabulary import FRAGMENT, ROOTS, docstrings, findings

COMPONENTS = {
    "policy loss (vespo)": r"vespo",
    "advantage (linear_best_of)": r"linear_best_of",
    "objective (flow_rwr)": r"flow_rwr|FlowRWR",
    "transition (noisy_ode)": r"noisy_ode|NoisyODE",
    "benchmark protocol (countbench)": r"countbench|CountBench",
    "image-token model (emu3)": r"emu3|Emu3",
    "VLM task (table2latex)": r"table2latex|Table2LaTeX",
    "reward (siglip_score)": r"siglip_score|SigLIPScore",
}
"""A component of each kind, and a pattern for its names: the files of mmrl that mention it are those it touches."""
PAGE = Path("docs/one-iteration.md")


def count(root: Path) -> dict[str, float]:
    """Return the counts of the checkout at `root` by their names."""
    package = root / "mmrl"
    files = sorted(package.rglob("*.py"))
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    trees = {file: ast.parse(text) for file, text in texts.items()}
    written = [text for tree in trees.values() for _, text in docstrings(tree)]
    roots = [root / each for each in ROOTS if (root / each).is_dir()]
    found = [line.partition(": ")[2] for line in findings(roots, root)]
    result: dict[str, float] = {
        "files in mmrl": len(files),
        "lines in mmrl": sum(text.count("\n") for text in texts.values()),
        "median lines a file": sorted(text.count("\n") for text in texts.values())[len(files) // 2],
        "files that one other file imports": sum(1 for users in _importers(root, trees).values() if len(users) == 1),
        "import cycles of modules": len(list(_cycles(_imports(root, trees)))),
        "import cycles of packages": len(list(_cycles(_packages(_imports(root, trees))))),
        "docstrings that begin with a fragment, %": 100 * sum(map(_is_fragment, written)) / len(written),
        "module names in two packages": sum("module name" in line for line in found),
        "class names defined twice": sum("class name" in line for line in found),
        "banned words in names": sum("not a term" in line for line in found),
        "banned words in prose": sum("in prose" in line for line in found),
    }
    if (root / PAGE).is_file():
        page = (root / PAGE).read_text(encoding="utf-8")
        result["files from a line of data to an optimizer step"] = len(set(re.findall(r"mmrl/[\w/]+\.py", page)))
    for kind, pattern in COMPONENTS.items():
        words = re.compile(rf"(?<![A-Za-z0-9])(?:{pattern})(?![A-Za-z0-9])")
        result[f"files of mmrl that name a {kind}"] = sum(bool(words.search(text)) for text in texts.values())
    return result


def _is_fragment(text: str) -> bool:
    return FRAGMENT.match(text.strip()) is not None


def _name(root: Path, file: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def _imports(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of mmrl that each one imports, inside functions too, but not for type checkers alone."""
    names = {_name(root, file) for file in trees}
    graph: dict[str, set[str]] = {}
    for file, tree in trees.items():
        module = _name(root, file)
        graph[module] = set()
        typing_only = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if node in typing_only:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    graph[module] |= {whole if whole in names else node.module} & names
            elif isinstance(node, ast.Import):
                graph[module] |= {alias.name for alias in node.names} & names
        graph[module].discard(module)
    return graph


def _packages(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the graph of mmrl's top-level packages and modules; the command line and `mmrl` itself are left out."""
    result: dict[str, set[str]] = defaultdict(set)
    for module, imported in graph.items():
        own = ".".join(module.split(".")[:2])
        result[own] |= {".".join(each.split(".")[:2]) for each in imported if each != "mmrl"} - {own}
    return {own: {each for each in others if each in result} for own, others in result.items()}


def _importers(root: Path, trees: dict[Path, ast.Module]) -> dict[str, set[str]]:
    users: dict[str, set[str]] = defaultdict(set)
    for module, imported in _imports(root, trees).items():
        for each in imported:
            users[each].add(module)
    return users


def _cycles(graph: dict[str, set[str]]) -> Iterator[set[str]]:
    """Yield the strongly connected components with more than one module (Tarjan 1972)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], order[other])
        if low[node] == order[node]:
            component: set[str] = set()
            while node not in component:
                component.add(stack.pop())
            if len(component) > 1:
                found.append(component)

    for node in graph:
        if node not in order:
            visit(node)
    yield from found


def main(arguments: list[str]) -> None:
    """Print a line per count, of the working tree or of the revision given."""
    if not arguments:
        _print(count(Path(".")))
        return
    archive = subprocess.run(["git", "archive", arguments[0]], capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        _print(count(Path(folder)))


def _print(counts: dict[str, float]) -> None:
    for name, value in counts.items():
        print(f"{value:8.1f}  {name}" if isinstance(value, float) else f"{value:8d}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])
