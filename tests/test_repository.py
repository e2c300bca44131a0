"""Rules for the files of the repository: small files, a complete lock, configuration files that are YAML."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from mmrl.config.loading.yaml_text import parse_yaml

WEIGHTS = Path("shapeworld/mmrl_shapeworld/weights")
FILE_LIMIT = 500_000  # bytes
WEIGHTS_LIMIT = 80_000_000  # bytes that a clone stores: a file that several models share counts once

PIN = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(==|===)[^\s;=]+(; .+)?$")
UNLOCKED = {"vllm", "xformers"}  # constraints.txt says why


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.fixture(scope="module")
def pins(repository) -> dict[str, str]:
    lines = (repository / "constraints.txt").read_text().splitlines()
    pinned = {}
    for line in lines:
        if line and not line.startswith("#"):
            match = PIN.match(line)
            assert match, f"constraints.txt: not `name==version` with an optional marker: {line}"
            pinned[canonical(match["name"])] = line
    return pinned


def test_every_dependency_is_locked(repository, pins):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    names = {canonical(re.match(r"[\w.-]+", requirement)[0]) for requirement in wanted}
    assert names - pins.keys() == UNLOCKED


def test_torch_is_the_build_that_torchvision_links(pins):
    assert pins["torch"] == "torch===2.13.0"  # `==` would let pip take 2.13.0+cpu
    assert pins["torchvision"] == "torchvision==0.28.0"


def test_platform_packages_have_markers(pins):
    assert all("sys_platform" in line for name, line in pins.items() if name.startswith(("nvidia-", "cuda-", "triton")))


@pytest.mark.integration
def test_every_config_is_yaml(repository):
    files = [path for path in (repository / "configs").rglob("*") if path.is_file() and path.name != "README.md"]
    assert files
    for path in files:
        assert path.suffix == ".yaml", path
        assert isinstance(parse_yaml(path.read_text(encoding="utf-8"), str(path))[0], dict)


def test_tracked_files_are_small(repository):
    if not (repository / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "ls-files", "-z", "--format=%(objectname) %(path)"]
    listed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True).stdout
    stored = {Path(path): name for name, path in (line.split(" ", 1) for line in listed.split("\0") if line)}
    sizes = {path: (repository / path).stat().st_size for path in stored}
    limited = {str(path): size for path, size in sizes.items() if not path.is_relative_to(WEIGHTS)}
    assert {path: size for path, size in limited.items() if size > FILE_LIMIT} == {}
    weights = {name: sizes[path] for path, name in stored.items() if path.is_relative_to(WEIGHTS)}
    assert sum(weights.values()) <= WEIGHTS_LIMIT, sum(weights.values())
