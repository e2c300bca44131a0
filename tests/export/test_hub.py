"""Pushing to the hub: private by default, and only to empty repositories."""

from __future__ import annotations

import pytest
from huggingface_hub import constants
from typer.testing import CliRunner

from mmrl.cli import app
from tests.export.fake_hub import running_hub
from tests.export.trained_runs import LORA, trained_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("trained") / "dots", {"policy": {"model": "shapeworld", **LORA}})[0]


@pytest.fixture
def hub(monkeypatch):
    """A hub of this process alone: the library gets its address as from HF_ENDPOINT, before any import."""
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        yield hub


def push(run, out, *options):
    words = ["export", str(run), "--out", str(out), "--lora-only", "--push", "ann/dots", *options]
    result = CliRunner().invoke(app, words)
    return result.exit_code, " ".join(result.output.split())


def test_push_announces_then_uploads_all_files_to_a_private_repository(hub, run, tmp_path):
    code, output = push(run, tmp_path / "out")
    assert code == 0, output
    there = hub.repositories["ann/dots"]
    kept = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert there["private"] is True and there["files"] == kept
    message = f"Uploading {len(kept)} files (0.1 MiB) to {hub.url}/ann/dots (private: only its owner sees it)"
    assert message in output and output.index(message) < output.index(f"{hub.url}/ann/dots/commit/")
    assert b'load_lora_weights("ann/dots")' in kept["README.md"]


def test_push_is_public_on_request_only(hub, run, tmp_path):
    code, output = push(run, tmp_path / "out", "--public")
    assert code == 0 and hub.repositories["ann/dots"]["private"] is False and "EVERYBODY sees it" in output


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        ({"private": True, "files": {"model.safetensors": b""}}, "ann/dots holds model.safetensors already"),
        ({"private": False, "files": {".gitattributes": b""}}, "ann/dots is there already, and public: say --public"),
    ],
)
def test_push_rejects_used_or_public_repositories_before_exporting(there, reason, hub, run, tmp_path):
    hub.repositories["ann/dots"] = there
    code, output = push(run, tmp_path / "out")
    assert code == 2 and reason in output and not (tmp_path / "out").exists()


def test_push_fills_an_empty_repository_of_the_same_kind(hub, run, tmp_path):
    hub.repositories["ann/dots"] = {"private": True, "files": {".gitattributes": b""}}
    code, output = push(run, tmp_path / "out")
    assert code == 0 and "which is empty" in output and "README.md" in hub.repositories["ann/dots"]["files"]


def test_push_without_a_login_names_the_login_command(hub, run, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_bad")
    code, output = push(run, tmp_path / "out")
    assert code == 2 and "hf auth login" in output and not (tmp_path / "out").exists()


def test_failed_uploads_leave_the_folder(hub, run, tmp_path):
    hub.full = True
    code, output = push(run, tmp_path / "out")
    assert code == 2 and "is written all the same" in output and (tmp_path / "out" / "README.md").is_file()


def test_export_without_push_sends_no_request(hub, run, tmp_path):
    hub.shutdown()
    result = CliRunner().invoke(app, ["export", str(run), "--out", str(tmp_path / "out"), "--lora-only"])
    assert result.exit_code == 0 and not hub.repositories
