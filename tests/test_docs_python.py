"""Every Python block of README.md and docs/ runs as it stands, on the shipped models and with smaller sizes."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.data.jsonl import write_samples
from mmrl.data.sample import Sample

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [
    page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if BLOCK.search(page.read_text())
]
MODELS = {
    "stabilityai/stable-diffusion-3.5-medium": "sd3-shapes-32",
    "openai/clip-vit-base-patch32": "clip-shapes",
    "yuvalkirstain/PickScore_v1": "clip-shapes",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": "clip-shapes",
    "Qwen/Qwen2.5-VL-3B-Instruct": "vlm-shapes",
}
"""Published models, and the shipped ones that stand in their place: folders of the same classes."""
SMALLER = {
    "iterations=200": "iterations=1",
    'rewards=["clip_score"], prompts': 'rewards=["clip_score"], iterations=1, batch=mmrl.Batch(2, 2), prompts',
    "groups=8, group_size=12, micro_batch=6": "groups=2, group_size=2, micro_batch=2",
    "steps=10": "steps=2",
    "steps=28": "steps=2",
    "updates=60": "updates=1",
    '"evaluation.prompts=16"': '"evaluation.prompts=2", "evaluation.diversity_prompts=0", "sampling.steps=2"',
    '"data.groups=2"': '"data.groups=2", "data.group_size=4"',
}
"""Sizes that are replaced, so that a page takes seconds."""
NEEDS_MORE = ("GRPOTrainer", "http://127.0.0.1", 'load("aesthetic")', "from_pretrained(model, ")
"""A server, a trained adapter or weights that are not shipped: such a block is compiled, and its imports run."""


def blocks(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def imports_of(block: str) -> str:
    """The block's import statements alone."""
    nodes = [node for node in ast.parse(block).body if isinstance(node, ast.Import | ast.ImportFrom)]
    return "\n".join(map(ast.unparse, nodes))


@pytest.fixture
def workplace(tmp_path, monkeypatch) -> Path:
    """A folder with the models and files that the pages name."""
    for name, shipped in MODELS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / "shapeworld" / "mmrl_shapeworld" / "weights" / shipped)
    samples = [Sample(str(number), prompt=f"a red circle {'above' if number % 2 else 'below'} a blue square")
               for number in range(4)]  # fmt: skip
    write_samples(samples, tmp_path / "prompts.jsonl")
    write_samples(samples, tmp_path / "val.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def context(page: Path) -> dict[str, Any]:
    """The names that a page takes as known."""
    if page.name == "kernels.md":
        width = 300 + 64 + 31 + 280 + 50
        return {"torch": torch, "query": torch.randn(width, 4, 8), "key": torch.randn(width, 2, 8),
                "value": torch.randn(width, 2, 8)}  # fmt: skip
    if page.name == "README.md":
        return {"image": Image.new("RGB", (32, 32), "red")}
    return {}


@pytest.mark.integration
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_runs(page, workplace):
    names: dict[str, Any] = {"__name__": "page", **context(page)}
    for block in blocks(page):
        for large, small in SMALLER.items():
            block = block.replace(large, small)
        short = any(mark in block for mark in NEEDS_MORE) or unknown_names(block, names)
        code = imports_of(block) if short else block
        exec(
            compile(code, f"<{page}>", "exec", dont_inherit=True), names
        )  # the project's own pages, not a model's output


def unknown_names(block: str, names: dict[str, Any]) -> set[str]:
    """Return the names that a block reads without defining them, such as `pipeline`."""
    import builtins

    tree = ast.parse(block)
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    stored |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    stored |= {arg.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for arg in node.args}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    stored |= {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return read - stored - names.keys() - set(dir(builtins))


def test_thirty_line_example_runs(workplace):
    """The page's first block is executed, not only its imports: it trains, compares and saves."""
    first = blocks(ROOT / "docs" / "python.md")[0]
    assert not unknown_names(first, {}) and not any(mark in first for mark in NEEDS_MORE)
    assert len(first.strip().splitlines()) <= 40
