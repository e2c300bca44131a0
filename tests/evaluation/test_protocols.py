"""Every protocol on ShapeWorld's data in its public format: right answers score best, wrong ones low."""

import json
import re

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from mmrl.benchmarks.metrics import Row, build_metric, measure
from mmrl.benchmarks.protocol import load_protocol, protocol_names
from mmrl.build.model_references import resolve_model
from mmrl.build.policies import build_policy
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.rewards import RewardSuite, Status, WeightedReward, load
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rollout_request import batch_requests
from mmrl.workflows.compare.inputs import SampleSource, for_generator, for_vlm, read_samples
from mmrl_shapeworld.captions import NUMBERS, RELATIONS, Caption, Clause, sample_scene
from mmrl_shapeworld.scenes import draw

COUNT = 12
LETTERS = "ABCD"


def caption_of(prompt):
    """The caption that a prompt was written from."""
    relation = next((word for word in RELATIONS if f" {word} " in prompt), None)
    clauses = []
    for part in re.split(f" {relation or 'and'} ", prompt):
        number, *size, colour, shape = part.split()
        counts = {word: count for count, word in NUMBERS.items()}
        clauses.append(Clause(counts[number], colour, shape.removesuffix("s"), size[0] if size else None))
    return Caption(tuple(clauses), relation)


def drawn(sample):
    """Return an image that satisfies the prompt; a relation holds clearly along one axis, as GenEval requires."""
    caption, rng = caption_of(sample.prompt), np.random.default_rng(3)
    while True:
        scene = sample_scene(caption, rng)
        if caption.relation is None:
            return draw(scene, 64)
        a, b = scene.things
        along, across = (a.x - b.x, a.y - b.y) if caption.relation.endswith("of") else (a.y - b.y, a.x - b.x)
        if abs(along) > 0.45 > 0.2 > abs(across):
            return draw(scene, 64)


def written(sample):
    picture = Image.new("RGB", (256, 128), "white")
    ImageDraw.Draw(picture).text((20, 20), sample.metadata["text"], "black", ImageFont.load_default(64))
    return picture


def still(sample):
    return [draw(sample_scene(Caption((Clause(1, "red", "circle"),)), np.random.default_rng(0)))] * 4


def jumping(sample):
    rng = np.random.default_rng(0)
    kinds = [Clause(2, "red", "square"), Clause(3, "blue", "square"), Clause(4, "green", "square")]
    return [draw(sample_scene(Caption((kind,)), rng)) for kind in kinds]


def boxed(sample):
    return json.dumps([{"bbox_2d": sample.answer}])


def detected(sample):
    return json.dumps([{"bbox_2d": thing["box"], "label": thing["label"]} for thing in sample.answer])


def solved(sample):
    choices = sample.metadata.get("choices")
    return f"The answer is {LETTERS[choices.index(sample.answer)]}." if choices else f"\\boxed{{{sample.answer}}}"


def missed(sample):
    choices = sample.metadata.get("choices")
    return LETTERS[choices.index(sample.answer) - 1] if choices else "77"


def blank(sample):
    return Image.new("RGB", (64, 64), (245, 245, 245))


ANSWERS = {
    "geneval": (drawn, blank, 1.0, 0.0),
    "text-rendering": (written, blank, 1.0, 0.0),
    "drawbench": (drawn, blank, None, None),  # a model scores, and has no best
    "vbench-consistency": (still, jumping, 1.0, None),
    "refcoco": (boxed, lambda sample: "[[0, 0, 3, 3]]", 1.0, 0.0),
    "coco-detection": (detected, lambda sample: "[]", 1.0, 0.0),
    "countbench": (lambda sample: f"I count {sample.answer}.", lambda sample: "9", 1.0, 0.0),
    "ocr-edit-distance": (lambda sample: sample.answer, lambda sample: "....", 1.0, 0.0),
    "chartqa": (lambda sample: sample.answer, lambda sample: "77", 1.0, 0.0),
    "mathvista": (solved, missed, 1.0, 0.0),
    "temporal-grounding-iou": (lambda sample: json.dumps(sample.answer), lambda sample: "[8, 9]", 1.0, 0.0),
}


def measured(source, suite, samples, answer):
    """Every number of the protocol, for one answer to each sample."""
    inputs = [reward_input(sample, answer(sample), group=n, id=sample.id) for n, sample in enumerate(samples)]
    output = suite.score(inputs)
    failed = [output.detail[n] for column in output.status.values() for n, s in enumerate(column) if s is Status.ERROR]
    assert not failed
    rows = [
        Row(sample, item.text, {name: float(values[n]) for name, values in output.values.items()})
        for n, (sample, item) in enumerate(zip(samples, inputs, strict=True))
    ]
    return {config.label: measure(build_metric(config), rows) for config in source.scoring.metrics}


def test_every_protocol_is_tested():
    assert sorted(ANSWERS) == protocol_names()


@pytest.mark.parametrize("name", ANSWERS)
def test_protocols_score_right_answers_above_wrong_ones(name, tmp_path):
    if name == "text-rendering":
        pytest.importorskip("rapidocr_onnxruntime", reason="the extra [ocr]: no wheels for Python 3.13 and later")
    right, wrong, best, worst = ANSWERS[name]
    protocol = load_protocol(name)
    count = 2 if name == "text-rendering" else COUNT  # the reader is slow
    source = SampleSource.find("shapeworld", count, protocol)
    samples = for_generator(source, read_samples(source, folder=tmp_path / "data", seed=0))
    assert len(samples) == count
    headline, *others = source.scoring.metrics
    suite = RewardSuite([WeightedReward(load(reward.name, **reward.args)) for reward in source.scoring.rewards])
    good, bad = (measured(source, suite, samples, answer) for answer in (right, wrong))
    suite.close()
    assert all(np.isfinite(value) for value in (*good.values(), *bad.values())), (good, bad)
    assert good[headline.label] > bad[headline.label] + 0.02
    if best is not None:
        assert good[headline.label] == pytest.approx(best)
    if worst is not None:
        assert bad[headline.label] == pytest.approx(worst)
    for config in others:
        way = 1 if build_metric(config).direction == "higher" else -1
        assert way * good[config.label] > way * bad[config.label], config.label


def test_protocol_data_are_deterministic_by_seed(tmp_path):
    for name in protocol_names():
        protocol = load_protocol(name)
        for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
            source = SampleSource.find("shapeworld", 4, protocol)
            read_samples(source, folder=tmp_path / name / folder, seed=seed)
        a, b, c = (
            {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
            for folder in (tmp_path / name / each for each in "abc")
        )
        assert a == b and a != c, name


@pytest.fixture(scope="module")
def embedded():
    """The vision-language model that ships."""
    subject = resolve_model("shapeworld", "vlm")
    return build_policy(subject.policy, subject.sampling)


@pytest.mark.integration
@pytest.mark.parametrize(("name", "chance"), [("refcoco", 0.2), ("coco-detection", 0.02), ("mathvista", 0.3)])
def test_embedded_model_scores_above_chance(embedded, tmp_path, name, chance):
    source = SampleSource.find("shapeworld", 48, load_protocol(name))
    samples = for_vlm(source, read_samples(source, folder=tmp_path / "data", seed=0), embedded, own=True)
    greedy = TokenSamplingConfig(temperature=0.0, max_new_tokens=32)
    assert greedy.temperature == source.protocol.sampling["temperature"]
    (requests,) = batch_requests(samples, 1, 48, sampling=greedy)
    texts = embedded.rollout(requests, seed=0).media
    suite = RewardSuite([WeightedReward(load(reward.name, **reward.args)) for reward in source.scoring.rewards])
    message = dict(zip([sample.id for sample in samples], texts, strict=True))
    found = measured(source, suite, samples, lambda sample: message[sample.id])
    suite.close()
    assert found[source.scoring.metrics[0].label] > chance + 0.1, found


def test_external_models_get_instructions_and_the_coordinate_format(embedded, tmp_path):
    source = SampleSource.find("shapeworld", 2, load_protocol("refcoco"))
    samples = read_samples(source, folder=tmp_path / "data", seed=0)
    own, foreign = (
        for_vlm(source, samples, embedded, True),
        for_vlm(source, samples, embedded, False, space="norm_1000"),
    )
    taught, text = own[0], foreign[0]
    words = samples[0].prompt
    assert taught.prompt == f"Locate the {words}."
    assert text.prompt.startswith(f"{words}\nAnswer with nothing but its bounding box as JSON")
    assert "Coordinates go from 0 to 1000" in text.prompt
    assert [choice.name for choice in text.rewards] == [choice.name for choice in taught.rewards] == ["box_iou"]
    assert text.rewards[0].args == {"space": "norm_1000"}
