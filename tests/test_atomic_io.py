"""Atomic writes leave the old content or the new one, and no temporary file."""

from __future__ import annotations

import errno
import os

import pytest

from mmrl.atomic_io import append_durably, replace_text, replacing, sync_tree


@pytest.mark.parametrize("durable", [False, True])
def test_files_are_replaced_atomically(tmp_path, durable):
    path = tmp_path / "a.txt"
    assert replace_text(path, "old", durable) == path and path.read_text() == "old"
    with replacing(path, durable) as draft:
        draft.write_text("new")
        assert path.read_text() == "old" and draft.parent == tmp_path
    assert path.read_text() == "new" and os.listdir(tmp_path) == ["a.txt"]


def test_threads_that_replace_a_file_at_once_have_drafts_of_their_own(tmp_path):
    path = tmp_path / "a.txt"
    with replacing(path) as one:
        one.write_text("one")
        with replacing(path) as other:
            other.write_text("other")
        assert path.read_text() == "other"
    assert path.read_text() == "one" and os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_errors_keep_the_old_file_and_remove_the_draft(tmp_path, durable, error):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)), replacing(path, durable) as draft:
        draft.write_text("half")
        raise error
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_errors_name_the_file_and_not_its_draft(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*/a.txt'"), replacing(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileNotFoundError, match=r"'.*/none/a\.txt'"):
        replace_text(tmp_path / "none/a.txt", "x")
    with pytest.raises(OSError, match=r"'.*/b\.txt'"), replacing(tmp_path / "a.txt"):
        raise OSError(errno.ENOSPC, "No space left on device", "/x/b.txt")


def test_drafts_of_killed_processes_are_overwritten(tmp_path):
    (tmp_path / ".a.txt.tmp").write_text("half")
    replace_text(tmp_path / "a.txt", "new", durable=True)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_text_outside_utf8_raises_unless_escaped(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        replace_text(tmp_path / "a.txt", "\ud800")
    assert not os.listdir(tmp_path)
    assert replace_text(tmp_path / "a.txt", "\ud800", errors="backslashreplace").read_text() == "\\ud800"


def test_durable_writes_sync_before_renaming(tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(os, "fsync", lambda handle: events.append("sync"))
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: events.append("rename"))
    replace_text(tmp_path / "a.txt", "x", durable=True)
    assert events == (["sync", "rename"] if os.name == "nt" else ["sync", "rename", "sync"])


def test_failed_appends_leave_the_file_unchanged(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    append_durably(path, b"1\n")
    append_durably(path, b"2\n")

    def full(handle):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        append_durably(path, b"3\n")
    assert path.read_bytes() == b"1\n2\n"


def test_sync_tree_syncs_all_files(tmp_path, monkeypatch):
    (tmp_path / "b").mkdir()
    for name in ("a", "b/c"):
        (tmp_path / name).write_text("x")
    handles = []
    monkeypatch.setattr(os, "fsync", handles.append)
    sync_tree(tmp_path)
    assert len(handles) == (2 if os.name == "nt" else 4)
