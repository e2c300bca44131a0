"""A generator that draws whole scales: what each code depends on, its folder, its sizes and its model card."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mmrl.config.policy import ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.errors import ConfigError
from mmrl.generation.image_tokens import ImageTokenPolicy
from mmrl.generation.image_tokens.image_token_model import SnippetRequest
from mmrl.generation.image_tokens.image_token_policy import load_image_token_model
from mmrl.generation.image_tokens.picture_decoder import PictureDecoder
from mmrl.generation.image_tokens.scale_forward import forward_scales
from mmrl.rollout_request import RolloutRequest
from tests.generation.image_tokens.conftest import REQUESTS
from tests.generation.image_tokens.tiny_models import CODES

CPU = torch.device("cpu")
STARTS = [0, 1, 5, 11]
"""The first code of each scale of 1×1, 2×2 and 2×3 codes, and the number of all."""


@torch.no_grad()
def test_a_code_depends_on_coarser_scales_alone(shared_painter):
    model = shared_painter("scales").image_model
    prompts = [model.prompt("a dog", None).cond]
    codes = torch.arange(11)[None] % CODES
    before = forward_scales(model, prompts, codes)
    assert before.shape[:2] == (1, 11) and model.codes_per_image == 11
    for start, end in pairwise(STARTS):
        for place in range(start, end):
            other = codes.clone()
            other[0, place] = (codes[0, place] + 7) % CODES
            changed = (forward_scales(model, prompts, other) - before).abs().amax((0, 2)) > 1e-6
            assert changed.tolist() == [number >= end for number in range(11)], place


def test_pictures_are_those_of_the_finest_scale(shared_painter):
    policy = shared_painter("scales")
    rollout = policy.rollout(REQUESTS, seed=0)
    codes = torch.tensor(rollout.token_ids)
    codec = policy.image_model._codec
    assert rollout.media[3].tobytes() == codec.decode(codes[3:4, 5:].view(1, 2, 3))[0].tobytes()
    encoded = policy.image_model.encode(rollout.media)
    parts = [codec.encode(rollout.media, rows, columns).flatten(1) for rows, columns in ((1, 1), (2, 2), (2, 3))]
    assert torch.equal(encoded, torch.cat(parts, dim=1))


def test_coarser_pictures_are_the_first_scales_of_fine_ones(painter_folder, shared_painter, tmp_path):
    """Greedily, so that the draws of the generator do not differ; a coarse model's checkpoint draws fine pictures."""
    config = ImageTokenConfig(model=str(painter_folder("scales")), size=(4, 4), train="full", device="cpu")
    coarse = ImageTokenPolicy.from_config(config, ImageTokenSamplingConfig(temperature=0))
    assert coarse.codes_per_image == 5
    requests = [RolloutRequest(r.sample, 1, r.group, sampling=coarse.sampling) for r in REQUESTS]
    some, all_scales = coarse.rollout(requests, seed=0), shared_painter("scales").rollout(requests, seed=0)
    assert [row[:5] for row in all_scales.token_ids] == some.token_ids
    assert {picture.size for picture in some.media} == {(4, 4)}
    coarse.save(tmp_path)
    again = load_image_token_model(ImageTokenConfig(model=str(tmp_path), device="cpu"), CPU)
    assert again.scales == ((1, 1), (2, 2), (2, 3))


def test_other_sizes_and_attentions_and_a_trained_decoder_raise(painter_folder, shared_painter):
    folder = str(painter_folder("scales"))
    with pytest.raises(ConfigError, match=r"policy\.size: .* draws \[2, 2\], \[4, 4\], \[4, 6\], not \[8, 8\]"):
        load_image_token_model(ImageTokenConfig(model=folder, size=(8, 8), device="cpu"), CPU)
    for attention in ("flex", "mmrl"):
        config = ImageTokenConfig(model=folder, attention=attention, device="cpu")
        with pytest.raises(ConfigError, match=rf"policy\.attention: {attention} cannot read whole scales"):
            ImageTokenPolicy.from_config(config, ImageTokenSamplingConfig())
    with pytest.raises(ConfigError, match="the decoder of a next_scale_lm is not trained"):
        PictureDecoder(shared_painter("scales").image_model)


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "cannot be read"),
        ({"scales": [[1, 1]]}, "expected a map with the keys first_code, first_place, scales, start"),
        ({"scales": []}, "scales must be pairs"),
        ({"scales": [[1, 0]]}, "scales must be pairs"),
        ({"first_place": -1}, "first_place must be a whole number of at least 0, not -1"),
        ({"first_place": 900}, "places are tokens 900 to 910, but the language model has"),
    ],
)
def test_invalid_descriptions_raise(painter_folder, tmp_path: Path, content, message):
    whole = painter_folder("scales")
    for part in ("language_model", "tokenizer", "vqvae"):
        (tmp_path / part).symlink_to(whole / part)
    if isinstance(content, dict):
        described = json.loads((whole / "next_scale.json").read_text())
        content = json.dumps(content if "keys" in message else described | content)
    (tmp_path / "next_scale.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"next_scale\.json.*{message}"):
        load_image_token_model(ImageTokenConfig(model=str(tmp_path), device="cpu"), CPU)


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["plain", "guided"])
def test_the_model_card_draws_the_same_picture_without_mmrl(shared_painter, painter_folder, scale):
    policy, sample = shared_painter("scales"), REQUESTS[1].sample
    sampling = ImageTokenSamplingConfig(temperature=0, guidance_scale=scale)
    drawn = policy.rollout([RolloutRequest(sample, 1, 0, sampling=sampling)], seed=0)
    request = SnippetRequest(str(painter_folder("scales")), "float32", sample.prompt, sampling)
    found: dict[str, object] = {}
    snippet = policy.image_model.snippet(request)
    exec(compile(snippet, "model card", "exec"), found)
    assert found["codes"].flatten().tolist() == drawn.token_ids[0][5:]
    assert found["image"].tobytes() == drawn.media[0].tobytes()
    sampled = ImageTokenSamplingConfig(temperature=0.7, top_k=1, top_p=0.9, guidance_scale=scale)
    exec(
        compile(policy.image_model.snippet(replace(request, sampling=sampled)), "", "exec"),
        found,
    )
    assert found["image"].tobytes() == drawn.media[0].tobytes()  # of one candidate, sampling is greedy


def test_the_model_card_cuts_probabilities_at_the_temperature(shared_painter, painter_folder):
    """At temperature 1000 all codes are almost equally likely, so that half of the probability is half of the codes."""
    sampling, found = ImageTokenSamplingConfig(temperature=1000.0, top_p=0.5), {}
    request = SnippetRequest(str(painter_folder("scales")), "float32", "a dog", sampling)
    exec(compile(shared_painter("scales").image_model.snippet(request), "model card", "exec"), found)
    assert found["scores"].isfinite().sum(-1).tolist() == pytest.approx([CODES / 2] * 6, abs=1)
