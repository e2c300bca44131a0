"""`mmrl score`: from pictures and prompts to a table and a page."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmrl.cli import app
from mmrl.evaluation import score_folder
from tests.rewards.judges.fake_judge_server import FakeJudge, Refuses, Sure, between, pictures


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["score", *map(str, arguments)])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


@pytest.fixture
def drawn(tmp_path):
    """Six pictures, redder and redder, and their samples."""
    folder = tmp_path / "drawn"
    folder.mkdir()
    rows = []
    for i in range(6):
        Image.new("RGB", (8, 8), (51 * i, 0, 0)).save(folder / f"s{i}.png")
        rows.append({"id": f"s{i}", "prompt": f"a red picture, number {i}"})
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "prompts.txt").write_text("".join(row["prompt"] + "\n" for row in rows))
    return tmp_path


def redness(request):
    return Sure(pictures(request)[0].getpixel((0, 0))[0] / 255)


def arguments(drawn, judge, prompts="prompts.jsonl"):
    return ["--reward", "judge", "--images", drawn / "drawn", "--prompts", drawn / prompts, "--out", drawn / "out",
            "--arg", "judge.model=stub", "--arg", f"judge.base_url={judge.base_url}"]  # fmt: skip


def kept(drawn):
    return [json.loads(line) for line in (drawn / "out" / "scores.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("prompts", ["prompts.jsonl", "prompts.txt"])
def test_score_command_scores_a_folder_with_a_judge(drawn, prompts):
    with FakeJudge(redness) as judge:
        output = run(*arguments(drawn, judge, prompts), "-r", "compressibility", "-a", "compressibility.quality=50")
    assert [row["scores"]["judge"] for row in kept(drawn)] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1], abs=1e-6)
    assert all(row["status"] == {"judge": "ok", "compressibility": "ok"} for row in kept(drawn))
    assert sorted(between(request, "prompt")[0] for request in judge.requests) == sorted(
        row["prompt"] for row in kept(drawn)
    )
    line = next(line for line in output.stdout.splitlines() if line.strip().startswith("judge"))
    assert line.split() == ["judge", "0.5", "0", "1", "6", "0", "0", "0"]
    page = (drawn / "out" / "index.html").read_text()
    best = page[page.index("<h2>judge</h2>") :]
    assert best.index("s5.png") < best.index("s0.png") and "model=stub" in page and "quality=50" in page
    assert str(drawn / "out" / "index.html") in output.stdout.replace("\n", "")


def test_failed_scores_are_counted_with_exit_code_0(drawn):
    def answer(request):
        return Refuses(400) if "number 3" in between(request, "prompt")[0] else redness(request)

    (drawn / "drawn" / "s1.png").write_bytes(b"no picture")
    with FakeJudge(answer) as judge:
        output = run(*arguments(drawn, judge))
    line = next(line for line in output.stdout.splitlines() if line.strip().startswith("judge"))
    assert line.split()[4:8] == ["4", "0", "2", "0"] and "http_400 1" in line and "unreadable 1" in line
    assert [row["scores"]["judge"] for row in kept(drawn)][1::2] == [None, None, pytest.approx(1.0)]
    assert "Not scored" in (drawn / "out" / "index.html").read_text()


def test_score_exits_1_with_the_reason_if_every_row_failed(drawn):
    with FakeJudge(Refuses(404, b"no such model")) as judge:
        output = run(*arguments(drawn, judge), code=1)
    assert "nothing could be scored" in output.stderr and "no such model" in output.stderr
    assert len(kept(drawn)) == 6, "what is known is written all the same"


def test_scores_before_an_interrupt_are_kept(drawn, monkeypatch):
    made = score_folder.reward_input

    def stopped_at_the_fifth(sample, *others):
        if sample.id == "s4":
            raise KeyboardInterrupt
        return made(sample, *others)

    monkeypatch.setattr(score_folder, "AT_ONCE", 2)
    monkeypatch.setattr(score_folder, "reward_input", stopped_at_the_fifth)
    common = ["--images", drawn / "drawn", "--prompts", drawn / "prompts.txt", "--out", drawn / "out"]
    result = CliRunner().invoke(app, ["score", "--reward", "compressibility", *map(str, common)])
    assert result.exit_code != 0 and [row["id"] for row in kept(drawn)] == ["s0", "s1", "s2", "s3"]


def test_file_names_outside_unicode_lose_no_scores(drawn):
    (drawn / "drawn" / "s0.png").rename(drawn / "drawn" / os.fsdecode(b"\xff.png"))
    with FakeJudge(redness) as judge:
        run(*arguments(drawn, judge, "prompts.txt"))
    assert sorted(row["scores"]["judge"] for row in kept(drawn)) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1], abs=1e-6)


def test_distance_rewards_rank_the_lowest_first(drawn):
    (drawn / "mine.py").write_text(
        "from mmrl.rewards import Reward\n\n\n"
        "class Far(Reward):\n"
        '    """Far."""\n\n'
        '    name, needs, range, direction = "far", ("image",), (0.0, 1.0), "lower"\n\n'
        "    def score_one(self, item):\n"
        "        red = item.image.getpixel((0, 0))[0] / 255\n"
        '        return {"far": 1 - red, "part": 1 - red}\n'
    )
    common = ["--images", drawn / "drawn", "--prompts", drawn / "prompts.txt", "--out", drawn / "out"]
    run("--reward", f"{drawn / 'mine.py'}:Far", *common)
    page = (drawn / "out" / "index.html").read_text()
    for name in ("far", "part"):
        part = page[page.index(f"<h2>{name}</h2>") :]
        assert part.index("s5.png") < part.index("s0.png"), name


@pytest.mark.integration
def test_images_without_a_sample_are_reported(drawn):
    Image.new("RGB", (8, 8)).save(drawn / "drawn" / "stranger.png")
    with FakeJudge(redness) as judge:
        assert "1 pictures in" in run(*arguments(drawn, judge)).stdout


def test_file_rewards_take_settings(drawn):
    own = drawn / "mine.py"
    own.write_text(
        'def redness(image, scale=1.0):\n    """Red."""\n    return scale * image.getpixel((0, 0))[0] / 255\n'
    )
    common = ["--images", drawn / "drawn", "--prompts", drawn / "prompts.txt", "--out", drawn / "out"]
    run("--reward", f"{own}:redness", "--arg", "redness.scale=0.5", *common)
    assert [row["scores"]["redness"] for row in kept(drawn)] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5], abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "output", "code"),
    [
        (["--arg", "jugde.model=x"], "the rewards are judge", 2),
        (["--arg", "judge=x"], "the rewards are judge", 2),
        (["--arg", "judge.model=x", "--arg", "judge.model=y"], "both set judge.model", 2),
        (["--arg", "judge.model"], "is not an override", 2),
        (["--arg", "judge.modle=x"], "unexpected keyword argument", 1),
        (["--arg", "judge.prompt=alignmant"], "did you mean alignment", 1),
        (["--arg", "judge.model.x=1"], "cannot have keys", 2),
        (["--reward", "jugde"], "did you mean judge", 1),
        (["--reward", "judge"], "two rewards called judge", 1),
        (["--images", "nowhere"], "no such folder", 1),
        (["--prompts", "nowhere.txt"], "cannot be read", 1),
    ],
)
def test_score_validates_before_scoring(drawn, changes, output, code):
    with FakeJudge(redness) as judge:
        assert output in run(*arguments(drawn, judge), *changes, code=code).stderr
    assert not judge.requests and not (drawn / "out").exists()


@pytest.mark.integration
def test_score_help_imports_no_torch():
    code = "import sys\nfrom mmrl.cli import app\ntry:\n    app(['score', '--help'])\nexcept SystemExit:\n    pass\n"
    heavy = "print([m for m in ('torch', 'numpy', 'openai', 'PIL', 'mmrl.rewards') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code + heavy], capture_output=True, text=True, check=True).stdout
    assert "--reward" in output and output.strip().endswith("[]")


def test_the_table_has_the_reason_of_missing_scores(drawn):
    (drawn / "mine.py").write_text('def score(references):\n    return references["level"]\n')
    output = run(
        *("-r", f"{drawn / 'mine.py'}:score", "-r", "compressibility"),
        *("--images", drawn / "drawn", "--prompts", drawn / "prompts.txt", "--out", drawn / "out"),
    ).output
    assert "error 6: KeyError: 'level' (mine.py, line 2)" in " ".join(output.split())
