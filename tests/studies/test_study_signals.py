"""Signals to a study and its arms, which a shell script stands for here."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from mmrl.studies import runner
from mmrl.studies.arm_cache import ArmFolder
from mmrl.studies.runner import ArmJob, run_jobs
from mmrl.studies.study_display import PlainStudyDisplay


def test_ctrl_c_reaches_the_arms_of_a_study_as_one_signal(tmp_path, monkeypatch):
    """A terminal sends SIGINT to all of its processes. An arm leaves without a checkpoint at the second signal."""
    arm = tmp_path / "arm.sh"
    arm.write_text(
        "#!/bin/sh\ntrap 'echo INT' INT\ntrap 'echo TERM; exit' TERM\necho began\nwhile :; do sleep 0.01; done\n"
    )
    arm.chmod(0o755)
    monkeypatch.setattr(runner, "sys", SimpleNamespace(executable=str(arm)))
    folder = ArmFolder(tmp_path)
    config: Any = SimpleNamespace(training=SimpleNamespace(iterations=1))
    if (study := os.fork()) == 0:
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it
            signal.alarm(60)
            run_jobs([ArmJob("a", 0, config, folder, None)], 1, PlainStudyDisplay(Console(quiet=True)))
        finally:
            os._exit(0)
    log = tmp_path / "log.txt"
    deadline = time.monotonic() + 60
    while not (log.exists() and log.read_text()):
        assert time.monotonic() < deadline, "the arm did not begin"
        time.sleep(0.01)
    os.killpg(study, signal.SIGINT)
    os.waitpid(study, 0)
    assert log.read_text().split() == ["began", "TERM"]
