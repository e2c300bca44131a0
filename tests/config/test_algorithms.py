"""The names of algorithms: what they set, what the page says of them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from mmrl.config.algorithms.advantage import ADVANTAGES
from mmrl.config.algorithms.base import OBJECTIVES, AlgorithmConfig
from mmrl.config.algorithms.policy_gradient import GRPOConfig, PolicyGradientConfig, UniGRPOConfig
from mmrl.config.algorithms.policy_losses import POLICY_LOSSES, PolicyLossConfig
from mmrl.config.loading.load import parse_config
from mmrl.config.section import Section
from mmrl.config.validation import validation_errors

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
ALL: list[type[Any]] = [OBJECTIVES.load(name) for name in OBJECTIVES.built_in]
SMALLEST = """
name: tiny
policy: {kind: pipeline, model: shapeworld}
sampling: {transition: {name: flow_sde}}
rewards: [{name: shapeworld}]
data: {path: "shapeworld:train"}
"""


def set_keys(section: Section, default: Section, path: str = "") -> list[str]:
    """The keys in which a section differs from another of its kind."""
    found = []
    for key in section.__class__.model_fields:
        mine, other = getattr(section, key), getattr(default, key, None)
        if isinstance(mine, PolicyLossConfig) and isinstance(other, PolicyLossConfig):
            mine, other = mine.name, other.name
        if isinstance(mine, AlgorithmConfig):
            mine = mine.name
        if isinstance(mine, Section) and isinstance(other, Section):
            found += set_keys(mine, other, f"{path}{key}.")
        elif mine != other and path + key != "name":
            found.append(f"`{path}{key}: {'null' if mine is None else mine}`")
    return found


def row(algorithm: type[Any]) -> str:
    """Return the table's line of an algorithm, made from its class."""
    sentence, *_ = (algorithm.__doc__ or "").split("\n\n")
    sentence = " ".join(sentence.split())
    papers = re.findall(r"arXiv:\d{4}\.\d{5}", sentence)
    text = re.sub(r" ?\((?:[^()]*, )?arXiv:[^()]*\)", "", sentence)
    keys = set_keys(algorithm(), GRPOConfig()) if issubclass(algorithm, PolicyGradientConfig) else []
    name = algorithm.model_fields["name"].default
    return f"| `{name}` | {text.rstrip('.')} | {', '.join(keys) or '-'} | {', '.join(papers) or '-'} |"


def test_algorithms_page_lists_every_algorithm_with_its_settings():
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    missing = [line for each in ALL if (line := row(each)) not in lines]
    assert not missing, "docs/algorithms.md lacks these lines:\n" + "\n".join(missing)
    names = {line.split("`")[1] for line in lines if re.match(r"\| `\w+` \| .* \| .* \| .* \|$", line)}
    assert names - {"name"} == {each.model_fields["name"].default for each in ALL}


@pytest.mark.parametrize("algorithm", ALL)
def test_one_line_of_yaml_selects_an_algorithm(algorithm):
    name = algorithm.model_fields["name"].default
    config = parse_config(SMALLEST, "tiny.yaml", [f"algorithm={{name: {name}}}"])
    assert type(config.algorithm) is algorithm and config.algorithm == algorithm()
    assert algorithm.experience in ("rollouts", "demonstrations", "pairs", "answers")
    if name in (
        "distill",
        "mix",
        "ppo",
        "mah_dpo",
        "ranke",
        "reconstruction",
        "grao",
        "a_lol",
        "joint_grpo",
    ):  # they name other models, terms or heads, or need demonstrations or texts
        return
    errors = list(config.algorithm.validation_errors(config))
    assert all("one, and there is one" in line or "several" in line for line in errors), errors


def test_components_are_registered_under_their_own_name():
    for registry in (OBJECTIVES, POLICY_LOSSES, ADVANTAGES):
        registered = {name: registry.load(name) for name in registry.built_in}
        assert {name: section.model_fields["name"].default for name, section in registered.items()} == {
            name: name for name in registered
        }
    assert set(ALL) >= set(PolicyGradientConfig.__subclasses__())


def test_presets_can_be_overridden():
    config = parse_config(SMALLEST, "tiny.yaml", ["algorithm={name: dapo, clip: {high: 0.3}, kl: {coef: 0.01}}"])
    clip = config.algorithm.clip
    assert (clip.low, clip.high, config.algorithm.aggregate, config.algorithm.kl.coef) == (0.2, 0.3, "token", 0.01)


@pytest.mark.parametrize(
    ("section", "key", "expected"),
    [
        ("{name: diffusion_nft, kl: 0.04}", "kl", {"kind": "velocity_mse", "coef": 0.04}),
        ("{name: unigrpo, kl: 0.02}", "kl", {"kind": "velocity_mse", "coef": 0.02}),
        ("{name: dapo, clip: 0.1}", "clip", {"low": 0.1, "high": 0.28}),
        ("{name: grpo, clip: 0.1}", "clip", {"low": 0.1, "high": None}),
    ],
)
def test_a_bare_number_changes_its_own_key_alone(section, key, expected):
    config = parse_config(SMALLEST, "tiny.yaml", [f"algorithm={section}"])
    assert expected.items() <= getattr(config.algorithm, key).model_dump().items()
    assert UniGRPOConfig(kl=0.02).kl == UniGRPOConfig(kl={"coef": 0.02}).kl


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("{name: sapo, clip: {low: 0.2}}", "algorithm.clip: the surrogate sapo clips nothing"),
        ("{name: gspo, surrogate: topr}", "algorithm.clip: the surrogate topr clips nothing"),
        ("{name: cispo, clip: {dual: 3.0}}", "algorithm.clip.dual: cispo limits every ratio already"),
        (
            "{name: dapo, clip: {dual: 1.2}}",
            "algorithm.clip.dual: 1.2 does not lie above the ratio's ceiling, 1 + 0.28",
        ),
        ("{name: grpo, temperature: {positive: 2.0}}", "algorithm.temperature: it shapes the surrogate sapo"),
        ("{name: grpo, gamma: {k_negative: 2.0}}", "algorithm.gamma: it shapes the surrogate vespo"),
        ("{name: grpo, length: 100}", "algorithm.length: aggregate constant divides by it"),
        ("{name: luspo, aggregate: token}", "algorithm.length: aggregate constant divides by it"),
        ("{name: dpo, loss: ipo, label_smoothing: 0.1}", "algorithm.label_smoothing: the loss ipo has none"),
        ("{name: mpo, preference: 0, quality: 0, generation: 0}", "algorithm: preference, quality and generation"),
    ],
)
def test_keys_without_effect_are_rejected(algorithm, message):
    config = parse_config(SMALLEST, "tiny.yaml", [f"algorithm={algorithm}"])
    (line,) = config.algorithm.validation_errors(config)
    assert line.startswith(message)


SD = "sampling={steps: 10, transition: {name: flow_sde, noise_level: 0.7}"
TREES = "data={path: 'shapeworld:train', groups: 2, group_size: 8}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{SD}, window: {{size: 2, every: 5}}}}"], "sampling.window.every: a random window is drawn anew"),
        ([f"{SD}, window: {{size: 2, move: grow, decay: 0.1}}}}"], "sampling.window.decay: only a window that slides"),
        ([f"{SD}, window: {{move: slide}}}}"], "sampling.window.size: a window of all steps cannot slide"),
        (["algorithm.name=branch_grpo"], "algorithm.advantage.name: branch needs rows that branch"),
        ([f"{SD}, branch: {{branching_factor: 3}}}}"], "sampling.branch.branching_factor: nothing parts"),
        ([f"{SD}, branch: {{at: [1]}}}}", TREES], "algorithm.advantage.name: rows share decisions"),
        (
            [f"{SD}, branch: {{at: [1]}}}}", TREES, "algorithm={name: branch_grpo, aggregate: sequence}"],
            "algorithm.aggregate: sequence would weigh a shared decision",
        ),
        (
            [f"{SD}, branch: {{at: [1]}}}}", TREES, "algorithm={name: branch_grpo, importance: sequence}"],
            "algorithm.importance: sequence needs all decisions of a row",
        ),
        (
            [f"{SD}, branch: {{at: [0], branching_factor: 3}}}}", TREES],
            "data.group_size: 8 is no whole number of trees of branching_factor ** len(at) = 3 rows",
        ),
        ([f"{SD}, branch: {{at: [0, 1]}}}}", TREES, "data.micro_batch=2"], "data.micro_batch: 2 would cut trees of 4"),
        ([f"{SD}, branch: {{at: [1, 0]}}}}", TREES], "sampling.branch.at: [1, 0] must grow"),
        ([f"{SD}, window: {{size: 2}}, branch: {{at: [2]}}}}", TREES], "sampling.branch.at: there are 2 decisions"),
        (
            [f"{SD}, branch: {{at: [0]}}}}", TREES, "data.group_sampling.name=adaptive"],
            "data.group_sampling.name: adaptive draws groups",
        ),
        (["algorithm.name=diffusion_nft", "sampling.branch.at=[0]"], "sampling.branch: diffusion_nft does not learn"),
        (["evaluation.sampling={branch: {at: [0]}}"], "evaluation.sampling.branch: pictures"),
        ([f"{SD}, zigzag: {{steps: 10}}}}"], "sampling.zigzag.steps: 10 of the sampler's 10 steps"),
        (
            [f"{SD}, guidance_scale: 2, zigzag: {{guidance_scale: 3}}}}"],
            "sampling.zigzag.guidance_scale: 3.0 is no weaker than the 2.0",
        ),
        (
            [f"{SD}, zigzag: {{}}, window: {{size: 2, move: grow, before: noise}}}}"],
            "sampling.window.before: steps that are taken twice",
        ),
        ([f"{SD}, zigzag: {{rows: alternate}}}}"], "sampling.zigzag.rows: neighbours are to begin with the same noise"),
        (
            [f"{SD}, zigzag: {{rows: alternate}}, branch: {{at: [0], branching_factor: 3}}}}"],
            "sampling.zigzag.rows: neighbours are to begin with the same noise",
        ),
        (["algorithm.name=diffusion_nft", "sampling.zigzag={}"], "sampling.zigzag: diffusion_nft does not learn"),
        (["evaluation.sampling={zigzag: {rows: alternate}}"], "evaluation.sampling.zigzag.rows: every picture"),
        (["algorithm.name=grpo_guard", "sampling.transition.name=cps"], "algorithm.ratio: guard needs steps"),
        (["algorithm={name: grpo_guard, surrogate: topr}"], "algorithm.ratio: guard is for clip and sapo"),
        (["algorithm={name: grpo_guard, importance: sequence}"], "algorithm.ratio: guard normalises each step's own"),
        (
            ["algorithm.name=grpo_guard", "sampling.transition.learned={low: 0.1, high: 0.9}"],
            "algorithm.ratio: guard takes the noise of a step to stay as it was",
        ),
        (
            ["sampling.transition={name: cps, noise_level: 0.5, learned: {low: 0.1, high: 0.9}}"],
            "sampling.transition.learned: cps has no noise level to train",
        ),
        (
            ["sampling.transition.learned={low: 0.8, high: 0.9}"],
            "sampling.transition.noise_level: training begins at 0.7",
        ),
        (
            ["sampling.transition={name: ddim, noise_level: 0.7, learned: {low: 0.1, high: 1.5}}"],
            "sampling.transition.learned.high: 1.5 is above 1",
        ),
        (
            ["algorithm.name=diffusion_nft", "sampling.transition.learned={low: 0.1, high: 0.9}"],
            "sampling.transition.learned: diffusion_nft does not look at the noise",
        ),
        (["algorithm.advantage.history.buffer=8"], "algorithm.advantage.history: only running looks back"),
        (
            [
                "algorithm={name: branch_grpo, advantage: {extremes_threshold: 0.5}}",
                f"{SD}, branch: {{at: [0]}}}}",
                TREES,
            ],
            "algorithm.advantage.extremes_threshold: branch gives each step its own credit",
        ),
        (
            ["algorithm={name: b2_diffurl, advantage: {name: siblings}}"],
            "algorithm.advantage.name: siblings needs rows that",
        ),
        ([f"{SD}, window: {{include_last: true}}}}"], "sampling.window.include_last: flow_sde does not explore"),
        (["training.max_tokens=1000"], "training.max_tokens: only policies that answer in text count tokens"),
        (
            ["sampling.transition={name: noisy_ode, noise_level: 0.3}", "sampling.window.high=11"],
            "sampling.window.high: 11 lies past the 9 stochastic steps",
        ),
        (
            [
                "sampling.transition={name: noisy_ode, noise_level: 0.3}",
                "sampling.transition.learned={low: 0.1, high: 0.9, inputs: latents}",
                "algorithm.kl.coef=0.1",
            ],
            "algorithm.kl.kind: mean_distance divides by one noise level a step",
        ),
    ],
)
def test_invalid_exploration_settings_are_rejected(overrides, message):
    lines = validation_errors(parse_config(SMALLEST, "tiny.yaml", overrides))
    assert any(line.startswith(message) for line in lines), lines


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{SD}, window: {{size: 4, move: slide, every: 25, decay: 0.1, decay_from: 3}}}}"],
        [
            f"{SD}, window: {{size: 2, move: grow}}, branch: {{at: [0], branching_factor: 4}}}}",
            TREES,
            "algorithm.name=b2_diffurl",
        ],
        [f"{SD}, branch: {{at: [0, 3, 6]}}}}", TREES, "algorithm.name=branch_grpo"],
        ["sampling.transition={name: noisy_ode, noise_level: 0.3, learned: {low: 0.1, high: 0.9}}"],
        ["sampling={steps: 1, transition: {name: noisy_ode, noise_level: 0.3}, window: {include_last: true}}"],
        [
            f"{SD}, window: {{size: 2, move: grow, before: noise}}, branch: {{at: [0], branching_factor: 4}}}}",
            TREES,
            "algorithm={name: b2_diffurl, advantage: {name: siblings}}",
        ],
        ["algorithm.name=grpo_guard", "sampling.transition.name=dance_sde"],
        [
            f"{SD}, guidance_scale: 4, zigzag: {{rows: alternate}}, branch: {{at: [0]}}}}",
            TREES,
            "algorithm.advantage={name: siblings, std: batch}",
            "rewards=[{name: shapeworld}, {name: shapeworld_clip, at_least: 1.5}]",
            "evaluation.sampling={guidance_scale: 4, zigzag: {steps: 2}}",
        ],
    ],
)
def test_valid_exploration_settings_are_accepted(overrides):
    assert not validation_errors(parse_config(SMALLEST, "tiny.yaml", overrides))
