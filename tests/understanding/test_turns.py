"""Trajectories of several turns in every family: written, replayed and learnt from as one row."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from benchmarks.turns import as_turn_rows
from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.environments import Observation
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText
from mmrl.understanding.continuation import followed, with_positions
from mmrl.understanding.vlm import load_vlm
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.understanding.vlm_replay import packed_scores, row_scores
from tests.understanding.media import as_png, picture
from tests.understanding.tiny_vlms import FAMILIES, ROWS
from tests.understanding.turn_environments import Shows

EXACT = 2e-5  # float32: a log-probability of -10 computed in two shapes; a wrong position costs 0.1 and more
VIDEO = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm", "llava_onevision"}
EVERY_DAY = {"qwen2_5_vl", "qwen3_vl", "smolvlm", "gemma3"}
REFUSED = ("molmo2", "mllama")  # a second picture does not reach the loss; images are behind cross-attention
FURTHER = [name for name in ROWS if name not in REFUSED]
CONVERSATIONAL = [name for name in FAMILIES if name != "paligemma"]
MATRIX = [
    pytest.param(name, kind, marks=() if name in EVERY_DAY else pytest.mark.breadth, id=f"{name}-{kind}")
    for name in CONVERSATIONAL
    for kind in ("text", "picture", "clip")
    if kind != "clip" or name in VIDEO
]
WITH_IMAGE = Sample("shown", prompt="What is it?", images=(as_png(picture(1)),))
TEXT_ONLY = Sample("said", prompt="Two and two?")


def episodes(policy: VLMPolicy, *kinds: str, n: int = 3, seed: int = 0, **settings: Any) -> Rollout:
    policy.play_in(Shows(kinds), **settings)
    return policy.rollout(
        [RolloutRequest(sample, n, group) for group, sample in enumerate((WITH_IMAGE, TEXT_ONLY))], seed
    )


def gradient(policy: VLMPolicy, scores: torch.Tensor) -> torch.Tensor:
    for parameter in policy.parameters_to_train().values():
        parameter.grad = None
    scores.backward()
    grads = (p.grad for p in policy.parameters_to_train().values())
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


@pytest.mark.integration
@pytest.mark.parametrize("name, kind", MATRIX)
def test_trajectories_replay_and_equal_turn_rows(player, name, kind):
    policy = player(name)
    rollout = episodes(policy, kind, "text")
    turns = [len(episode.texts) for episode in rollout.episodes]
    assert max(turns) == 3
    assert policy.replay_gap(rollout) < EXACT
    assert policy.replay_gap(rollout.select([5, 0])) < EXACT
    recording = rollout.recording
    score = packed_scores if policy.attention.shares_prompts else row_scores
    rest = (False,)  # neither fused, nor a prompt for each row
    whole, apart = (score(policy.vlm, each, *rest)[0] for each in (recording, as_turn_rows(policy, recording)))
    rows = zip(whole, recording.lengths, strict=True)
    flat = torch.cat([row[:length] for row, length in rows])
    split = torch.cat([row[row != 0] for row in apart])
    torch.testing.assert_close(flat, split, atol=1e-5, rtol=0)
    weights = torch.linspace(-1, 1, len(flat))
    expected, found = (gradient(policy, (each * weights).sum()) for each in (split, flat))
    assert expected.norm() > 1
    assert (found - expected).norm() < 1e-5 * expected.norm()


def test_an_observation_that_returns_is_processed_once(player):
    policy = player("qwen3_vl")
    policy.play_in(Shows(["picture"]))
    encoder = policy._turn_writer().encoder
    messages = encoder.begin(WITH_IMAGE)
    first, after = encoder.encode(messages, Observation("Look.", (picture(2),)), WITH_IMAGE)
    again, _ = encoder.encode(messages, Observation("Look.", (picture(2),)), WITH_IMAGE)
    assert again is first
    others = [
        (messages, Observation("Look.", (picture(3),)), WITH_IMAGE),
        (messages, Observation("See.", (picture(2),)), WITH_IMAGE),
    ]
    for conversation, observation, sample in others:
        other, _ = encoder.encode(conversation, observation, sample)
        assert other is not first
        fresh, _ = policy._turn_writer().encoder.encode(conversation, observation, sample)
        for name, tensor in fresh.encoded.inputs.items():
            assert torch.equal(other.encoded.inputs[name], tensor)
    assert len(after) == len(messages) + 2


@pytest.mark.parametrize("name, kind", MATRIX)
def test_assembled_trajectories_equal_the_processors_own_encoding(player, name, kind):
    """Two turns of plain text, against one call of the processor with the whole conversation and all its media."""
    policy = player(name)
    environment = Shows([kind])
    policy.play_in(environment)
    rollout = policy.score_targets([TargetText(WITH_IMAGE, "", 0, turns=("ab", "cd"))])
    (observation,) = rollout.episodes[0].observations
    turns = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": WITH_IMAGE.prompt}]},
        {"role": "assistant", "content": [{"type": "text", "text": "ab"}]},
        {
            "role": "user",
            "content": [
                *([{"type": "image"}] * len(observation.images)),
                *([{"type": "video"}] * len(observation.videos)),
                {"type": "text", "text": observation.text},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "cd"}]},
    ]
    if observation.videos and not policy.vlm.family.mixes_media:
        pytest.skip("its processor takes no video beside a picture in one call; turn by turn each comes by itself")
    if name == "llava_onevision" and kind == "picture":
        pytest.skip("its processor cuts no tiles where a call has two pictures; turn by turn each comes with its tiles")
    processor, recording = policy.vlm.processor, rollout.recording
    text = processor.apply_chat_template(turns, tokenize=False)
    text = text[: text.rindex("cd") + 2] + policy.vlm.tokenizer.convert_ids_to_tokens(policy.vlm.end)
    prompt_text = processor.apply_chat_template(turns[:1], tokenize=False, add_generation_prompt=True)
    # Some templates put a space before an answer of the past, and none before an answer that is to be written.
    text = re.sub(r"(?i)(assistant:?) (?=ab|cd)", r"\1\n" if prompt_text.endswith("\n") else r"\1", text)
    media = {"images": [[picture(1), *observation.images]]}
    if observation.videos:
        media |= {"videos": [[each.frames for each in observation.videos]]}
        times = {"frames_indices": list(range(4)), "total_num_frames": 4, "fps": 2.0, "duration": 2.0}
        media["videos_kwargs"] = {"do_sample_frames": False, "video_metadata": [[times]]}
    encoded = dict(processor(text=[text], return_tensors="pt", **media))
    prompt = with_positions(policy.vlm.model, policy.vlm.family, recording.prompts[0])
    whole = followed(prompt, recording.continuation(0), policy.vlm.family)
    assert whole.inputs["input_ids"].tolist() == encoded["input_ids"].tolist()
    assert (whole.images, whole.videos) == (1 + len(observation.images), len(observation.videos))
    own = rollout.token_ids[0]
    is_own = recording.continuation(0).is_own
    assert encoded["input_ids"][0, recording.prompts[0].length :][is_own].tolist() == own
    encoded.pop("labels", None)
    with torch.no_grad():
        logits = policy.vlm.model(**encoded).logits[0] / 0.8
    logits = logits.index_fill(-1, policy.vlm.suppressed, -torch.inf).log_softmax(-1)
    places = is_own.nonzero()[:, 0] + recording.prompts[0].length
    expected = logits[places - 1, torch.tensor(own)]
    torch.testing.assert_close(rollout.log_probs[0], expected, atol=EXACT, rtol=0)


@pytest.mark.breadth
@pytest.mark.parametrize("name", FURTHER)
def test_further_families_replay_episodes(folder_of, name):
    config = VLMConfig(model=str(folder_of(name)), device="cpu", train="full")
    vlm = load_vlm(config)
    ends = torch.cat([vlm.ends, torch.arange(0, 256, 4)])
    sampling = TokenSamplingConfig(max_new_tokens=6, temperature=0.8)
    policy = VLMPolicy(replace(vlm, ends=ends), config, sampling, MediaConfig())
    policy.play_in(Shows(["picture", "text"]))
    rollout = policy.rollout([RolloutRequest(WITH_IMAGE, 4, 0)], 0)
    assert max(len(episode.texts) for episode in rollout.episodes) > 1
    assert policy.replay_gap(rollout) < 1e-4
    policy.replay(rollout, range(rollout.log_probs.shape[1]), lambda now: now.log_probs.sum().backward())
