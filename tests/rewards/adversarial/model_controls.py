"""Controls of rewards that run a network: ShapeWorld's own CLIP where numbers must mean something, else tiny ones.

A reward on a network of random weights has no better or worse pictures: there the control is that malformed answers are
recognised, and change nothing for the right one.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrl.build.load_models import build_models
from mmrl.build.policies import build_policy
from mmrl.config.loading.load import load_config
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.rewards import Reward, RewardInput, load
from mmrl.rewards.core.reward_io import RewardContext
from mmrl.training.model_handles import ModelHandle
from mmrl.training.named_model import NamedModel
from mmrl.training.run_models import NamedModels
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl.workflows.train_reward import load_reward_recipe, train_reward
from mmrl_shapeworld.captions import KINDS, sample_caption, sample_scene
from mmrl_shapeworld.scenes import draw
from mmrl_shapeworld.shipped_models import CLIP, UNIFIED, VLM_JUDGE
from mmrl_shapeworld.unified_splits import caption_questions
from mmrl_shapeworld.vqa.canvas import PALETTE
from mmrl_shapeworld.worlds.picture_pairs import painted
from tests.rewards.judges.fake_judge_server import FakeJudge, Says, pictures
from tests.rewards.models import tiny_models, tiny_qwen_scorers, tiny_vlm
from tests.understanding.media import as_png

from .controls import STRIP, Control, Place, drawn, filmed, written
from .media_controls import CAPTION, EMPTY, SCENE
from .text_controls import built

PROMPT = str(CAPTION)
QUESTIONS = caption_questions(CAPTION)
REAL = [
    (str(caption), [draw(sample_scene(caption, rng))])
    for rng in [np.random.default_rng(2)]
    for caption in (sample_caption(rng, KINDS) for _ in range(200))
]
"""Captions with a picture of each."""
NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (32, 32, 3), dtype=np.uint8))


def of_shapes(name: str, **args) -> Control:
    """Return the control of a reward on ShapeWorld's CLIP: the picture of the prompt, and pictures of nothing."""
    hostile = [drawn(image, PROMPT) for image in (EMPTY, STRIP)]
    return Control(built(name, model=str(CLIP), device="cpu", **args), drawn(SCENE, PROMPT), hostile)


def of_random(build) -> Control:
    return Control(build, tiny_models.answer(1), [tiny_models.answer(2, image=STRIP)], ranks=False)


def open_clip_arguments(place: Place) -> dict:
    import open_clip

    folder = place.folder / "hps"
    tiny_models.hps_folder(tiny_models.hps_folder(folder), "HPS_v2.1_compressed.pt")
    (folder / "control-ViT.json").write_text(json.dumps(tiny_models.OPEN_CLIP))
    open_clip.add_model_config(folder / "control-ViT.json")
    return {"model": str(folder), "architecture": "control-ViT"}


def aesthetic(place: Place) -> Reward:
    import torch

    clip = tiny_models.clip_folder(place.folder / "aesthetic-clip")
    head = place.folder / "sac+logos+ava1-l14-linearMSE.pth"
    torch.save(tiny_models.head_tensors(24), head)
    return load("aesthetic", model=str(clip), head=str(head))


def image_reward(place: Place) -> Reward:
    tokenizer = tiny_models.bert_tokenizer(place.folder / "blip-words")
    model = tiny_models.image_reward_folder(place.folder / "image-reward")
    return load("image_reward", model=str(model), tokenizer=str(tokenizer))


class Quickstart:
    """The pipeline that ships, as a model of a run; it is loaded at the first call."""

    def denoise(self, *arguments: Any) -> Any:
        return quickstart().painters["policy"].denoise(*arguments)


class Answerer:
    """The unified model that ships, as a model of a run; it is loaded at the first call."""

    def log_probs(self, texts: Any) -> Any:
        return answerer().log_probs(texts)


@cache
def answerer() -> ModelHandle:
    config = VLMConfig(model=str(UNIFIED), device="cpu")
    policy = VLMPolicy.from_config(config, TokenSamplingConfig(), frozen=True)
    return ModelHandle(NamedModel(policy), threading.Lock(), 64)


@cache
def quickstart() -> NamedModels:
    config = load_config("quickstart")
    return build_models(config, build_policy(config.policy, config.sampling))


@cache
def base(folder: Path) -> str:
    return str(tiny_vlm.qwen2_folder(folder / "qwen2"))


def hps_v3(place: Place) -> Reward:
    model = tiny_qwen_scorers.hps_v3_file(base(place.folder), place.folder / "hps-v3")
    return load("hps_v3", model=str(model), base=base(place.folder), pixels=2560, dtype="float32")


def video_reward(place: Place) -> Reward:
    model = tiny_qwen_scorers.video_reward_folder(base(place.folder), place.folder / "video-reward")
    return load("video_reward", video_fps=8.0, model=str(model), base=base(place.folder), dtype="float32")


def demonstrated(place: Place) -> Reward:
    """Return the reward of two demonstrations that go from white to the scene."""
    for name in ("one", "two"):
        folder = place.folder / "demonstrated" / name
        folder.mkdir(parents=True)
        EMPTY.save(folder / "0.png")
        SCENE.save(folder / "1.png")
    return load("demonstrated_steps", model=str(CLIP), demonstrations=str(place.folder / "demonstrated"), steps=2)


def coloured(red: int, seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 60, (32, 32, 3))
    noise[..., 0] += red
    return Image.fromarray(noise.astype(np.uint8))


def trained(place: Place, recipe: str, samples: list[Sample], *overrides: str) -> str:
    """Return the folder of a reward model that a few steps trained on pairs."""
    path = place.folder / f"{recipe}.jsonl"
    path.write_text("".join(json.dumps(asdict(each)) + "\n" for each in samples))
    settings = [f"data.path={path}", f"data.validation={path}", "training.steps=60", "head.hidden=16", *overrides]
    return str(train_reward(load_reward_recipe(recipe, settings), place.folder / recipe).folder)


def red_pairs() -> list[Sample]:
    return [
        Sample(
            f"p{n}",
            prompt="a red circle",
            chosen=as_png(coloured(180, 2 * n)),
            rejected=as_png(coloured(0, 2 * n + 1)),
        )
        for n in range(24)
    ]


@cache
def prefers_red(place: Place) -> str:
    """Return the folder of a reward model that prefers red pictures, trained once for the rewards that load it."""
    return trained(place, "shapes-preferences", red_pairs(), "labels={}", "training.batch=16")


def learned(place: Place) -> Reward:
    return load("learned", model=prefers_red(place), device="cpu")


class HalfRed:
    """A reference that draws between the answer and the hostile ones."""

    def pictures(self, samples: list[Sample], seed: int, draws: int = 1) -> list[list[Image.Image]]:
        return [[coloured(90, 902)] for _ in samples]


def learned_wins(place: Place) -> Reward:
    return load("learned_wins", model=prefers_red(place), reference="start", device="cpu")


def cotrained_pictures(place: Place) -> Reward:
    return load("cotrained_pictures", model=prefers_red(place), rule="artefacts", device="cpu")


def learned_latents(place: Place) -> Reward:
    pairs = [replace(each, rejected=as_png(EMPTY)) if n % 2 else each for n, each in enumerate(red_pairs())]
    settings = ("encoder.layers=[transformer_blocks.0]", "encoder.noise.high=0.3", "training.batch=16")
    return load("learned_latents", model=trained(place, "shapes-latents", pairs, *settings), device="cpu")


@cache
def text_model(place: Place) -> str:
    """Return the folder of a reward model that prefers answers that repeat the reference."""
    pairs = []
    for n in range(90):
        right, wrong = n % 10, (n + 1 + n // 10) % 10
        pairs.append(Sample(f"d{n}", prompt="1+1=", answer=str(right), chosen=str(right), rejected=str(wrong)))
    return trained(place, "shapes-answers", pairs)


def shares(request) -> Says:
    """Share every score of a pair by the distance from white."""
    one, other = (float(255 - np.asarray(image).mean()) + 1 for image in pictures(request))
    share = one / (one + other)
    axes = ("Alignment", "Coherence", "Style")
    return Says("\n\n".join(f"{axis} Score:\n Image 1: {share}\n Image 2: {1 - share}" for axis in axes))


def scores(request) -> Says:
    (image,) = pictures(request)
    value = 5 if np.asarray(image).std() > 1 else 2
    return Says("\n".join(f"{axis} Score (1-5): {value}" for axis in ("Alignment", "Coherence", "Style")))


def unified(name: str, answer, others=()) -> Control:
    def build(place: Place) -> Reward:
        server = place.stack.enter_context(FakeJudge(answer))
        return load(name, model="UnifiedReward", base_url=server.base_url, timeout_s=5.0)

    hostile = [drawn(image, PROMPT) for image in (EMPTY, STRIP)]
    return Control(build, drawn(SCENE, PROMPT), hostile, [drawn(image, PROMPT) for image in others])


def texts(name: str, **args) -> Control:
    hostile = [written(text, answer="4") for text in ("7", "0")]
    return Control(
        lambda place: load(name, model=text_model(place), device="cpu", **args), written("4", answer="4"), hostile
    )


WANTED = ("3", "large", "red", "circle", "left")
PAINTED = [WANTED, ("2", "large", "red", "circle", "left"), ("2", "small", "blue", "circle", "right")]


def painted_answer(number: int) -> RewardInput:
    """Return a picture that fits the caption (0), or less and less; 3 is another that fits."""
    picture = Image.fromarray(PALETTE[painted(PAINTED[number % 3], number)[0]])
    return drawn(picture, " ".join(WANTED))


VIDEO = [SCENE, EMPTY, SCENE, EMPTY]
RANDOM_VIDEO = Control(
    video_reward,
    filmed(VIDEO, "two red"),
    [filmed(clip, "two red") for clip in ([SCENE], [SCENE, STRIP], [SCENE, EMPTY.resize((9, 9))], [])],
    ranks=False,
)
RED = RewardInput("a", 0, "a red circle", image=coloured(180, 900))
RED_SAMPLE = replace(RED, sample=Sample("a", prompt="a red circle"))

CONTROLS: dict[str, Control] = {
    "clip_score": of_shapes("clip_score"),
    "pickscore": of_shapes("pickscore"),
    "siglip_score": of_random(
        lambda place: load("siglip_score", model=str(tiny_models.siglip_folder(place.folder / "siglip")))
    ),
    "reconstruction": Control(
        built("reconstruction", model=str(CLIP), reference="image", device="cpu"),
        drawn(SCENE, image=SCENE),
        [drawn(image, image=SCENE) for image in (EMPTY, STRIP, NOISE)],
    ),
    "picture_questions": Control(
        built("picture_questions"),
        drawn(SCENE, PROMPT, questions=QUESTIONS),
        [drawn(image, PROMPT, questions=QUESTIONS) for image in (EMPTY, STRIP, NOISE)],
        context=RewardContext(models={"policy": Answerer()}),
    ),
    "diffusion_likelihood": Control(
        built("diffusion_likelihood", model="start", levels=2),
        drawn(SCENE, PROMPT),
        [drawn(image, PROMPT) for image in (EMPTY, STRIP, NOISE)],
        context=RewardContext(models={"start": Quickstart()}, seed=1),
    ),
    "goal_baseline": of_shapes("goal_baseline", baseline="", alpha=0.5),
    "goal_contrast": of_shapes("goal_contrast", negative="nothing"),
    "anchor_margin": of_shapes("anchor_margin", anchors=["three blue squares", "a green triangle"]),
    "transported_clip": of_shapes("transported_clip", real=REAL),
    "hps_v2": of_random(lambda place: load("hps_v2", **open_clip_arguments(place))),
    "hps_v21": of_random(lambda place: load("hps_v21", **open_clip_arguments(place))),
    "hps_v3": of_random(hps_v3),
    "aesthetic": of_random(aesthetic),
    "image_reward": of_random(image_reward),
    "video_reward": RANDOM_VIDEO,
    "vqa_score": of_random(
        lambda place: load("vqa_score", model=str(tiny_vlm.qwen_folder(place.folder / "qwen")), device="cpu")
    ),
    "appearance_style": Control(
        built("appearance_style", model=str(CLIP), style=PROMPT, device="cpu"),
        filmed([SCENE] * 3),
        [filmed(clip) for clip in ([EMPTY] * 3, [SCENE, EMPTY, EMPTY], [SCENE], [SCENE, STRIP])],
    ),
    "demonstrated_steps": Control(demonstrated, drawn(SCENE), [drawn(EMPTY), drawn(NOISE), drawn(STRIP)]),
    "learned": Control(learned, RED, [replace(RED, image=image) for image in (coloured(0, 901), EMPTY, STRIP)]),
    "learned_wins": Control(
        learned_wins,
        RED_SAMPLE,
        [replace(RED_SAMPLE, image=image) for image in (coloured(0, 901), EMPTY, STRIP)],
        context=RewardContext(models={"start": HalfRed()}),
    ),
    "cotrained_pictures": Control(
        cotrained_pictures, RED, [replace(RED, image=image) for image in (coloured(0, 901), EMPTY, STRIP)]
    ),
    "learned_latents": Control(
        learned_latents, RED, [replace(RED, image=image) for image in (coloured(0, 901), EMPTY, STRIP)]
    ),
    "learned_text": texts("learned_text"),
    "trained_judge": Control(
        built("trained_judge", model=str(VLM_JUDGE), question="{prompt}", max_new_tokens=40, device="cpu"),
        painted_answer(0),
        [painted_answer(1), painted_answer(2)],
        [painted_answer(3)],
    ),
    "cotrained": texts("cotrained", rule="numeric"),
    "unified_reward": unified("unified_reward", scores),
    "unified_reward_pairs": unified("unified_reward_pairs", shares, others=[EMPTY]),
}
