"""The page is whole in itself, safe to open, and tells when the reward was hacked."""

import base64
import io
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from mmrl.evaluation import EvaluationError, summarise_run, write_report

VOID = {"meta", "img", "input"}


class Page(HTMLParser):
    """Collects tags, addresses and text, and checks that tags close in order."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.addresses, self.text, self.alts = [], [], [], "", []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"a handler: {name}"
            if name in ("src", "href", "data", "action", "srcset", "xlink:href"):
                self.addresses.append(value)
            if name == "alt":
                self.alts.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += data


def read(run):
    html = write_report(run).read_text(encoding="utf-8")
    return html, Page(html)


def test_report_has_all_sections_and_loads_no_resource(make_run):
    run = make_run(steps=(0, 5, 10), iterations=10)
    html, page = read(run)
    assert {"img", "svg", "polyline", "table", "style"} <= set(page.tags) and "script" not in page.tags
    assert "link" not in page.tags and "iframe" not in page.tags
    assert len(page.addresses) == 8 and all(a.startswith("data:image/png;base64,") for a in page.addresses)
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    first = page.alts.index("a red dot 0 (step 0)")  # cards are ordered by change
    picture = Image.open(io.BytesIO(base64.b64decode(page.addresses[first].split(",")[1])))
    kept = Image.open(run / "samples" / "step-0" / "0000-0.png")
    assert picture.tobytes() == kept.tobytes()
    for text in (
        "Trained against held-out rewards",
        "Reward: redness",
        "KL to the reference",
        "Clipped share",
        "Replay gap",
        "Gradient norm",
        "Seconds per phase",
        "rollout",
        "new words",
        "× 0.80",
    ):
        assert text in page.text, text
    assert "name: demo a red dot" in page.text  # the configuration
    assert "total_std" not in page.text and "unfinished" not in page.text


def test_report_escapes_prompts_and_config(make_run):
    prompt = "\"'><script>alert(1)</script><img src=x onerror=alert(1)> &amp; ●"
    html, page = read(make_run(prompt=prompt))
    assert "<script" not in html and "<img src=x" not in html
    assert f"{prompt} 0" in page.text and f"{prompt} 0 (step 10)" in page.alts
    assert "script" not in page.tags and len(page.addresses) == 8


@pytest.mark.integration
def test_report_warns_of_a_falling_heldout_reward(make_run):
    hacked = read(make_run("hacked", heldout=-0.2))[1].text
    assert re.search(
        r"redness rose while the held-out held fell by 0\.\d+, from .* the reward is probably being hacked", hacked
    )
    assert "held-out held fell" not in read(make_run("honest", heldout=0.2))[1].text
    for seed in range(4):  # about as often up as down, and seldom surely so
        run = make_run(f"unsure-{seed}", heldout=0.0, prompts=6, seed=seed)
        difference, text = summarise_run(run).changes["held"].difference, read(run)[1].text
        falls = difference.mean < 0 and "while no held-out reward did" not in text  # that says it all
        assert ("held-out held fell" in text) == falls
        assert ("it may be chance" in text) == (falls and difference.verdict == "unsure")


def test_report_has_heldout_prompts_with_images_and_a_warning(make_run):
    run = make_run()
    inner = make_run("inner", prompts=8, rise=-0.3, prompt="a new shape").rename(run / "heldout")
    (inner / "metrics.jsonl").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        for step in (0, 10):
            file.write(f'{{"kind": "evaluation", "step": {step}, "heldout_evaluation/redness": 0.5}}\n')
    text, page = read(run)[1].text, read(run)[1]
    assert "Before and after, held-out prompts" in text and "a new shape 0" in text and len(page.addresses) == 16
    assert re.search(r"redness rose, but on held-out prompts it fell by 0\.\d+", text)
    assert "evaluation on held-out prompts" in text
    assert summarise_run(inner).name == "run/heldout"


def test_report_warns_of_failed_scorers(make_run):
    text = read(make_run(failed=3))[1].text
    assert "Step 10: held failed on 3 of 40 answers (3 by error)." in text and "\u2013" in text


def test_report_of_unfinished_runs(make_run, tmp_path):
    run = make_run(steps=(0,), iterations=4)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # being written
    page = read(run)[1]
    assert "unfinished: 4 of 10 iterations" in page.text and len(page.addresses) == 4
    assert "Before and after" not in page.text and "Reward: redness" in page.text
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yaml").write_text("name: bare\n")
    assert "svg" not in read(bare)[1].tags
    assert [path.name for path in bare.iterdir() if path.suffix == ".html"] == ["report.html"]


def test_report_rejects_broken_runs(make_run, tmp_path):
    with pytest.raises(EvaluationError, match="is no run"):
        write_report(tmp_path)
    run = make_run()
    (run / "metrics.jsonl").write_text('broken\n{"kind": "train", "step": 1}\n')
    with pytest.raises(EvaluationError, match=r"metrics.jsonl:1: is no line of metrics"):
        write_report(run)
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(EvaluationError, match=r"config.yaml is not YAML"):
        write_report(run)
