"""Trained arms on disk, which studies share: one folder for each configuration, seed and version of the code.

    arms/<configuration>/seed-0/requested.yaml   the configuration, written before training
    arms/<configuration>/seed-0/code.json        the digest of all code at that time
    arms/<configuration>/seed-0/run/             the run folder
    arms/<configuration>/seed-0/inference-.../   evaluations of the trained arm with other settings of inference
    arms/<configuration>/seed-0/finished.json    the digest of each source file and model file that the run used and of
                                                 each file that it names, the versions of libraries, and CPU-seconds

A finished arm is used again as long as the source files that it used have the same meaning (comments, docstrings and
layout do not count), the files that its configuration names, such as data and rewards of the user's own, are the same,
and the libraries have the same versions. An unfinished one is resumed if none of that changed. Folders of other
versions are kept; a new one is called seed-0.1, seed-0.2, ...
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmrl.atomic_io import replace_text
from mmrl.components import named_files
from mmrl.config.loading.load import dump_config
from mmrl.config.recipes import recipes_folder
from mmrl.config.train import TrainConfig
from mmrl.file_digest import file_digest

FINISHED, REQUESTED, CODE = "finished.json", "requested.yaml", "code.json"
INFERENCE_REQUESTED, INFERENCE_DONE = "inference.json", "done"
PACKAGES = ("mmrl", "mmrl_kernels", "mmrl_shapeworld")
LIBRARIES = ("torch", "diffusers", "transformers", "peft", "numpy")
ELSEWHERE = ("mmrl.cli", "mmrl.studies", "mmrl.demo", "mmrl.evaluation.report", "mmrl.evaluation.comparison")
"""Modules that show or start runs, and change no number."""
OUTPUT_KEYS = {"dir", "display", "trackers", "pictures"}
"""Keys of `run` that change no number."""


@dataclass(frozen=True)
class ArmFolder:
    """The place of one arm and seed."""

    path: Path

    @property
    def run(self) -> Path:
        """The run folder."""
        return self.path / "run"

    @property
    def finished(self) -> bool:
        """True once the arm is trained and measured."""
        return (self.path / FINISHED).is_file()

    @property
    def cpu_seconds(self) -> float | None:
        """CPU-seconds of the process that finished it; None before."""
        return float(self._read()["cpu_seconds"]) if self.finished else None

    def request(self, config: TrainConfig) -> None:
        """Write the configuration and the version of the code, before training."""
        self.path.mkdir(parents=True, exist_ok=True)
        own = config.run.model_copy(update={"dir": str(self.run), "display": "plain"})
        stated: dict[str, Any] = {"code": code_digest(), "libraries": library_versions()}
        if files := files_of(config):
            stated["files"] = files
        replace_text(self.path / CODE, json.dumps(stated))
        replace_text(self.path / REQUESTED, dump_config(config.model_copy(update={"run": own})))

    def inference(self, settings: Mapping[str, Any]) -> Path:
        """Return the folder of an evaluation of the trained arm with these settings, and write them into it."""
        text = json.dumps(settings, sort_keys=True)
        folder = self.path / f"inference-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        folder.mkdir(parents=True, exist_ok=True)
        replace_text(folder / INFERENCE_REQUESTED, text)
        return folder

    def finish(self, cpu_seconds: float, files: dict[str, str]) -> None:
        """Record what the run used."""
        record = {"files": files, "libraries": library_versions(), "cpu_seconds": round(cpu_seconds, 2)}
        replace_text(self.path / FINISHED, json.dumps(record, indent=1))

    def is_current(self) -> bool:
        """Return whether this folder's run would come out the same with today's code."""
        if not self.finished:
            stated = json.loads((self.path / CODE).read_text(encoding="utf-8"))
            same = _are_unchanged(stated.pop("files", {}))
            return same and bool(stated == {"code": code_digest(), "libraries": library_versions()})
        record = self._read()
        return _are_unchanged(record["files"]) and record["libraries"] == library_versions()

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.path / FINISHED).read_text(encoding="utf-8"))
        return found


def find_arm(root: Path, config: TrainConfig) -> ArmFolder:
    """Return the folder of a configuration: a finished or unfinished one of today's code, or a new one."""
    for folder in _folders(root, config):
        if not (folder.path / REQUESTED).is_file() or folder.is_current():
            return folder
    raise AssertionError("the numbers of folders do not end")


def config_digest(config: TrainConfig) -> str:
    """Return a short digest of all settings that change numbers, except the seed."""
    settings = config.model_dump(mode="json", exclude={"name", "seed"})
    settings["run"] = {key: value for key, value in settings["run"].items() if key not in OUTPUT_KEYS}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def used_files() -> dict[str, str]:
    """Return the digest of each source file of this suite that this process has imported, by module name."""
    names = sorted(name for name in sys.modules if name.partition(".")[0] in PACKAGES)
    return {name: _file_digest(name) for name in names if not name.startswith(ELSEWHERE) and _source(name)}


def files_of(config: TrainConfig) -> dict[str, str]:
    """Return the digest of each local file that a configuration names, by path: data, weights, code of the user's own.

    A file that is named in a module or in another file is not among them.
    """
    found = named_files(config.model_dump(mode="json", exclude={"name", "run"}))
    return {path: _file_digest(path) for path in found if not _is_module(path)}


def model_files(folder: Path) -> dict[str, str]:
    """Return the digest of each weight file of a local model, by path."""
    return {str(path): _file_digest(str(path)) for path in sorted(folder.rglob("*.safetensors"))}


@cache
def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute a run's numbers."""
    return {name: version(name) for name in LIBRARIES}


@cache
def code_digest() -> str:
    """Return a digest of every source file of the suite that can change a number."""
    digest = hashlib.sha256()
    for module, path in source_files():
        digest.update(f"{module} {_source_digest(path)}\n".encode())
    return digest.hexdigest()


def source_files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the source file of every module of the suite that can change a number."""
    for package in PACKAGES:
        home = _package_folder(package)
        for path in sorted(home.rglob("*.py")) if home else ():
            module = ".".join((package, *path.relative_to(home or path).with_suffix("").parts))
            if not module.startswith(ELSEWHERE):
                yield module, path


def data_files() -> Iterator[tuple[str, Path]]:
    """Yield the name and the path of every file that is no code and can change a number: models and recipes."""
    folders = [home for package in PACKAGES if (home := _package_folder(package))]
    recipes = [each for each in recipes_folder().iterdir() if each.name != "studies"]
    for home in (*folders, *sorted(recipes)):
        for path in sorted(home.rglob("*")):
            name = ".".join(path.relative_to(home.parent).parts)
            if path.is_file() and path.suffix not in (".py", ".pyc") and not name.startswith(ELSEWHERE):
                yield name, path


def _folders(root: Path, config: TrainConfig) -> Iterator[ArmFolder]:
    home, seed = root / config_digest(config), f"seed-{config.seed}"
    yield ArmFolder(home / seed)
    number = 1
    while True:
        yield ArmFolder(home / f"{seed}.{number}")
        number += 1


def _are_unchanged(files: Mapping[str, str]) -> bool:
    return all(_file_digest(name) == digest for name, digest in files.items())


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES and not name.endswith(".safetensors")


def _file_digest(name: str) -> str:
    """Return the digest of a module's source or of a file; empty if it is gone."""
    if _is_module(name):
        source = _source(name)
        return _source_digest(source)[:16] if source else ""
    path = Path(name)
    return file_digest(path)[:16] if path.is_file() else ""


@cache
def _source_digest(path: Path) -> str:
    """Return the digest of a file's syntax tree without docstrings: comments and layout change nothing."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _source(module: str) -> Path | None:
    """Return the source file of a module of the suite, without importing it."""
    package, *rest = module.split(".")
    home = _package_folder(package)
    if home is None:
        return None
    file = home.joinpath(*rest).with_suffix(".py") if rest else home / "__init__.py"
    inside = home.joinpath(*rest, "__init__.py")
    return file if file.is_file() else inside if inside.is_file() else None


@cache
def _package_folder(package: str) -> Path | None:
    from importlib.util import find_spec

    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
