"""Rewards by source, in the place of those that samples name."""

import pytest
from pydantic import ValidationError

from mmrl.build.config_checks import check
from mmrl.build.reward_suites import build_reward_suite, replace_named_rewards, unused_rewards
from mmrl.config.loading.load import parse_config
from mmrl.config.rewards import RewardConfig, ScoringConfig
from mmrl.data.sample import RewardChoice, Sample
from mmrl.errors import ConfigError
from mmrl.rewards import RewardError, RewardInput
from mmrl.rewards.core.reward_io import SAMPLE_REWARDS
from mmrl.rewards.core.routing import SharedLoader

OWN = (RewardChoice("detection_f1"),)
SAMPLES = [
    Sample(id="0", source="crowd", task="detection", rewards=OWN),
    Sample(id="1", source="crowd-colour", task="detection", rewards=OWN),
    Sample(id="2", source="letters", task="ocr", rewards=OWN),
    Sample(id="3", source="caption", rewards=OWN),
]


def scoring(**by_source):
    return ScoringConfig.model_validate({"by_source": by_source})


def test_source_goes_before_task_and_others_keep_their_own():
    settings = scoring(
        crowd=[{"name": "od_length"}], detection=[{"name": "vision_r1"}, {"name": "detection_map", "weight": 0.0}]
    )
    found = [[each.name for each in sample.rewards] for sample in replace_named_rewards(SAMPLES, settings)]
    assert found == [["od_length"], ["vision_r1", "detection_map"], ["detection_f1"], ["detection_f1"]]
    assert replace_named_rewards(SAMPLES, ScoringConfig()) == SAMPLES
    assert all(sample.rewards == OWN for sample in SAMPLES)


def test_replaced_rewards_score_with_their_weights_and_arguments():
    settings = scoring(
        crowd=[{"name": "box_iou", "weight": 2.0}, {"name": "detection_f1", "weight": 0.0, "args": {"threshold": 0.9}}]
    )
    samples = replace_named_rewards(SAMPLES[:1], settings)
    suite = build_reward_suite((), samples, SharedLoader())
    item = RewardInput(
        "0",
        0,
        "where?",
        text="[0, 0, 80, 100]",
        references={"answer": [0, 0, 100, 100], "space": "pixel"},
        metadata={SAMPLE_REWARDS: samples[0].rewards},
    )
    values = suite.score([item]).values
    assert values["box_iou"][0] == pytest.approx(0.8) and values["detection_f1"][0] == 0
    assert values["total"][0] == pytest.approx(1.6)


def test_a_source_has_at_least_one_reward():
    with pytest.raises(ValidationError, match="at least 1"):
        scoring(crowd=[])


def test_a_configured_cascade_stops_answers():
    rewards = [{"name": "format"}, {"name": "numeric", "after": {"format": 1.0}}]
    suite = build_reward_suite([RewardConfig.model_validate(each) for each in rewards], (), SharedLoader())
    texts = ("<think>2</think><answer>3</answer>", "3")
    items = [RewardInput(str(n), 0, "?", text=text, references={"answer": 3}) for n, text in enumerate(texts)]
    output = suite.score(items)
    assert output.values["numeric"].tolist() == [1, 0] and output.values["total"].tolist() == [2, 0]
    assert suite.counts(output)["numeric"] == {"ok": 1, "stopped": 1}


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("diversity", "rewards.1.after: diversity compares all answers to a prompt"),
        ("compressibility", "rewards.1.after: answers that are stopped get the worst value of compressibility"),
    ],
)
def test_a_cascade_that_cannot_work_is_refused_before_a_model_is_loaded(reward, message):
    recipe = f"""
name: tiny
policy: {{kind: pipeline, model: no-such-model}}
sampling: {{transition: {{name: flow_sde}}}}
algorithm: {{name: grpo}}
rewards: [{{name: artefacts}}, {{name: {reward}, after: {{artefacts: 0.5}}}}]
data: {{path: "shapeworld:train"}}
"""
    with pytest.raises(ConfigError, match=message):
        check(parse_config(recipe, "tiny.yaml", ()))


def test_the_runs_own_code_may_score_a_source(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def near(text): return 0.5\nnear.range = (0.0, 1.0)\n")
    scoring = ScoringConfig(by_source={"counting": [{"name": f"{file}:near"}]})
    samples = [Sample(id="a", prompt="", task="counting"), Sample(id="b", prompt="", rewards=(RewardChoice("format"),))]
    replaced = replace_named_rewards(samples, scoring)
    suite = build_reward_suite([], replaced, SharedLoader(), scoring=scoring)
    inputs = [RewardInput(each.id, 0, "", text="7", metadata={SAMPLE_REWARDS: each.rewards}) for each in replaced]
    assert suite.score(inputs).values["near"].tolist() == pytest.approx([0.5, float("nan")], nan_ok=True)
    suite.close()
    others = [*replaced, Sample(id="c", rewards=(RewardChoice(f"{file}:other"),))]
    with pytest.raises(RewardError, match="by name alone"):
        build_reward_suite([], others, SharedLoader(), scoring=scoring)


def test_rewards_that_score_no_sample_are_named():
    counted = Sample(id="a", task="counting", rewards=(RewardChoice("count_exact"),))
    recipe = """
name: tiny
policy: {kind: vlm, model: no-such-model}
rewards: [{name: numeric}, {name: format, weight: 0}]
data: {path: mine.jsonl}
"""
    config = parse_config(recipe, "tiny.yaml", ())
    assert unused_rewards(config, [counted, counted]) == (
        "rewards: numeric scores no answer: each of the 2 samples names its own rewards or has those of its task "
        "(count_exact). For others, set scoring.by_source={counting: [{name: numeric}]}"
    )
    assert not unused_rewards(config, [counted, Sample(id="b")])
    assert not unused_rewards(config, [Sample(id="b", rewards=(RewardChoice("numeric"),))])
