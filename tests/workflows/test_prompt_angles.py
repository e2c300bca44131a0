"""Angles of real prompts: which tokens are the question, and what the command writes."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from mmrl.build.policies import build_policy
from mmrl.cli import app
from mmrl.config import load_config
from mmrl.config.data import AngleConcentrationPromptsConfig
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.workflows.prompt_angles import angle_concentration, prompt_angles, question_tokens, with_angles


@pytest.fixture(scope="module")
def policy():
    config = load_config("shapes-reasoning")
    return build_policy(config.policy, config.sampling, config.media)


def test_the_question_lies_between_a_common_beginning_and_end():
    assert question_tokens([1, 5, 6, 2], [1, 7, 2]).tolist() == [False, True, True, False]
    assert question_tokens([1, 5, 6, 2], [1, 2]).tolist() == [False, True, True, False]
    assert question_tokens([1, 5, 5, 2], [1, 5, 2]).tolist() == [False, False, True, False]
    assert question_tokens([1, 2], [1, 9, 2]).tolist() == [False, True]


def test_angles_are_those_of_the_states_that_the_output_layer_reads(policy):
    sample = Sample(id="a", prompt="7*8-5=")
    states, tokens = policy.prompt_states(sample), policy.prompt_tokens(sample)
    assert states.shape[0] == len(tokens)
    head = policy.vlm.model.get_output_embeddings()
    inputs = policy.vlm.to_device(policy._prompt(sample, None).inputs)
    with torch.no_grad():
        torch.testing.assert_close(head(states), policy.vlm.model(**inputs).logits[0], atol=1e-4, rtol=1e-4)
    text = [policy.vlm.decode([token]) for token in tokens.tolist()]
    first = text.index("7")
    length = text.index("=") - first + 1
    question = torch.zeros(len(tokens), dtype=torch.bool)
    question[first : first + length] = True
    before = torch.arange(len(tokens)) < first
    expected = angle_concentration(states, question, before)
    assert prompt_angles(policy, sample) == pytest.approx(tuple(map(float, expected)))


@pytest.mark.integration
def test_samples_get_their_angle_and_keep_the_rest(tmp_path):
    data = tmp_path / "few.jsonl"
    lines = [
        {"id": f"{n}", "prompt": text, "answer": 1, "metadata": {"level": n}}
        for n, text in enumerate(["1+2=", "3*4-5="])
    ]
    data.write_text("".join(json.dumps(each) + "\n" for each in lines))
    out = tmp_path / "angles.jsonl"
    done = CliRunner().invoke(app, ["data", "angles", "shapes-reasoning", f"data.path={data}", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "2 samples, angle concentration from" in done.output
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["metadata"]["level"] for each in found] == [0, 1]
    angles = [
        sample.metadata["angle"] for sample in with_angles(load_config("shapes-reasoning", [f"data.path={data}"]))
    ]
    assert [each["metadata"]["angle"] for each in found] == angles
    assert all(-2 <= angle <= 2 for angle in angles) and angles[0] != angles[1]
    config = load_config("shapes-reasoning", [f"data.path={out}", "data.prompts.name=angle_concentration"])
    assert isinstance(config.data.prompts, AngleConcentrationPromptsConfig)


def test_what_has_no_question_or_no_tokens_is_refused(policy):
    class Deaf:
        def prompt_tokens(self, sample, start=None):
            return torch.tensor([1, 2])

    with pytest.raises(DataError, match="does not depend on its text"):
        prompt_angles(Deaf(), Sample(id="a", prompt="a"))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"policy\.kind is pipeline"):
        with_angles(load_config("quickstart"))
