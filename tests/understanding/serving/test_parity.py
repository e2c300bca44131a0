"""The parity matrix: each family by a server and in process, ids equal and log-probabilities to 1e-5 in float32."""

from __future__ import annotations

import pytest
import torch

from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.policy import RolloutRequest
from tests.understanding.media import as_png, picture
from tests.understanding.serving.stub_process import stub
from tests.understanding.serving.test_served_engine import move, policy_of, settings
from tests.understanding.tiny_vlms import FAMILIES

SAMPLES = (
    Sample("seen", prompt="What?", images=(as_png(picture(1)),)),
    Sample("wide", prompt="And this one, or another?", images=(as_png(picture(2, 72, 40)),)),
    Sample("two", prompt="<image> or <image>?", images=(as_png(picture(3)), as_png(picture(4, 40, 56)))),
    Sample("said", prompt="Two and two?"),
)
EVERY_DAY = ("qwen2_5_vl", "internvl", "idefics3", "gemma3")
NEEDS_A_PICTURE = ("paligemma",)
COOL = TokenSamplingConfig(max_new_tokens=8, temperature=0.9)
GREEDY = TokenSamplingConfig(max_new_tokens=8, temperature=0.0)


@pytest.fixture(scope="module")
def server(folder_of):
    """Serve each family at a port of one process."""
    with stub(**{name: folder_of(name) for name in FAMILIES}) as process:
        yield process


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.breadth) for name in FAMILIES]
)
@torch.no_grad()
def test_served_rollouts_equal_those_in_process(server, folder_of, tmp_path, name):
    samples = [sample for sample in SAMPLES if sample.images or name not in NEEDS_A_PICTURE]
    served, inside = (policy_of(folder_of(name), sampling=COOL) for _ in range(2))
    served.serve(settings(server.url_of(name), probes=2), tmp_path)
    for policy in (served, inside):
        move(policy)
    greedy = [RolloutRequest(sample, 1, group, sampling=GREEDY) for group, sample in enumerate(samples)]
    ours, theirs = served.rollout(greedy, seed=0), inside.rollout(greedy, seed=0)
    assert ours.token_ids == theirs.token_ids
    torch.testing.assert_close(ours.log_probs, theirs.log_probs, atol=2e-5, rtol=0)
    sampled = served.rollout([RolloutRequest(sample, 3, group) for group, sample in enumerate(samples)], seed=1)
    own = inside.score_recording(sampled.recording)
    assert (own - sampled.log_probs).abs()[sampled.mask].mean() <= 1e-5
    assert [prompt.length for prompt in sampled.recording.prompts] == [
        prompt.length for prompt in ours.recording.prompts
    ]
