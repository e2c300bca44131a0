"""Processes that verify mathematics: their clocks, deaths and ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from mmrl.rewards import InvalidAnswer
from mmrl.rewards.core.reward_errors import ScoringFailed
from mmrl.rewards.rules.math_pool import MathPool

linux = pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")


@pytest.fixture
def pool():
    made = MathPool(size=2)
    yield made
    made.close()


def stand_in(folder, body):
    """A pool of workers that misbehave: real processes that run `body` instead."""
    script = folder / "worker.py"
    script.write_text("import os, signal, sys, time, json\nprint('{\"ready\": true}', flush=True)\n" + body)
    return MathPool(size=1, script=script)


@pytest.mark.integration
def test_expensive_formula_ends_its_worker_and_the_next_is_scored(pool):
    with pytest.raises(InvalidAnswer, match=r"took more than 0\.5 s"):
        pool.equal("1", "9^{9^{9^{9}}}", timeout_s=0.5)
    assert pool.equal("1", "1.0", timeout_s=20) and not pool.equal("1", "2", timeout_s=20)


@pytest.mark.integration
def test_expensive_references_are_scorer_failures_but_equal_themselves(pool):
    with pytest.raises(ScoringFailed, match=r"checking it took more than 0\.5 s") as failed:
        pool.equal("9^{9^{9^{9}}}", "1", timeout_s=0.5)
    assert failed.value.kind == "reference"
    assert pool.equal("9^{9^{9^{9}}}", "9^{9^{9^{9}}} ", timeout_s=20)


@pytest.mark.integration
def test_threads_share_workers(pool):
    wrong = []

    def ask(number):
        for k in range(10):
            if pool.equal(str(number), f"\\frac{{{2 * number + k % 2}}}{{2}}", timeout_s=20) != (k % 2 == 0):
                wrong.append((number, k))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(pool._all) == 2


@pytest.mark.integration
def test_killed_workers_are_replaced(pool):
    assert pool.equal("1", "1.0", timeout_s=20)
    (worker,) = pool._all
    worker._process.kill()
    assert pool.equal("1", "1.0", timeout_s=20) and worker not in pool._all


def test_answers_that_kill_two_workers_are_invalid(tmp_path):
    body = 'sys.stdin.readline(); print(\'{"gold": "ok"}\', flush=True); os._exit(7)'
    pool = stand_in(tmp_path, body)
    with pytest.raises(InvalidAnswer, match="a worker that ended with 7"):
        pool.equal("1", "2", timeout_s=1)
    assert not pool._all


def test_references_that_kill_two_workers_are_scorer_failures(tmp_path):
    with pytest.raises(ScoringFailed, match="a worker that ended with -9") as failed:
        stand_in(tmp_path, "sys.stdin.readline(); os.kill(os.getpid(), signal.SIGKILL)").equal("1", "2", timeout_s=1)
    assert failed.value.kind == "reference"


def test_stalled_workers_time_out_as_scorer_failures(tmp_path):
    with pytest.raises(ScoringFailed, match="too little CPU time") as failed:
        stand_in(tmp_path, "sys.stdin.readline(); time.sleep(600)").equal("1", "2", timeout_s=0.05)
    assert failed.value.kind == "timeout"


@pytest.mark.parametrize("line", ["no JSON", "[1]", "", '{"equal": '])
def test_malformed_worker_output_is_rejected(tmp_path, line):
    with pytest.raises(ScoringFailed):
        stand_in(tmp_path, f"sys.stdin.readline(); print({line!r}, flush=True)").equal("1", "2", timeout_s=1)


def test_missing_library_is_reported(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text('print(\'{"failed": "No module named math_verify"}\', flush=True)')
    with pytest.raises(ScoringFailed, match="could not be started: No module named math_verify") as failed:
        MathPool(1, script).equal("1", "2", timeout_s=1)
    assert failed.value.kind == "worker"


@pytest.mark.integration
@linux
def test_workers_import_no_torch_and_have_a_memory_limit(pool):
    assert pool.equal("1", "1.0", timeout_s=20)
    (worker,) = pool._all
    here = Path(f"/proc/{worker._process.pid}")
    assert "torch" not in (here / "maps").read_text()
    limit = next(line for line in (here / "limits").read_text().splitlines() if line.startswith("Max address space"))
    assert int(limit.split()[3]) == 2 << 30


@pytest.mark.integration
@linux
def test_workers_end_with_their_program_and_forks_start_new_ones(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "from mmrl.rewards import RewardInput, load\n"
        "from mmrl.rewards.rules.math_pool import POOL\n"
        "def ask():\n"
        "    item = RewardInput('0', 0, '', text='0.5', references={'answer': '1/2'})\n"
        "    assert load('maths').score([item] * 3).values['maths'].tolist() == [1, 1, 1]\n"
        "    return {worker._process.pid for worker in POOL._all}\n"
        "ask()\n"
        "before = {worker._process.pid for worker in POOL._all}\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    own = ask()\n"
        "    POOL.close()\n"
        "    os._exit(0 if own and not own & before else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "print(*ask())\n"  # those of the parent still answer
    )
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    workers = [int(pid) for pid in ended.stdout.split()]
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.integration
@linux
def test_workers_end_with_a_killed_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from mmrl.rewards.rules.math_pool import POOL\n"
        "assert POOL.equal('1', '1.0', 60)\n"
        "print(*(worker._process.pid for worker in POOL._all), flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as running:
        (worker,) = map(int, running.stdout.readline().split())
        os.kill(running.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
