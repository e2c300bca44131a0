"""Loading recipes: round trips, and the message for every kind of mistake."""

from __future__ import annotations

import re
import string

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mmrl.config import ConfigError, TrainConfig, dump_config, list_recipes, load_config
from mmrl.config.algorithms.base import KLConfig
from mmrl.config.algorithms.forward_process import DiffusionNFTConfig
from mmrl.config.loading.load import parse_config
from mmrl.config.loading.overrides import check_set_once
from mmrl.config.loading.schema import ABSENT_KEYS, dotted, key_paths
from mmrl.config.rewards import RewardConfig
from mmrl.workflows.train_reward import load_reward_recipe

SMALLEST = "{name: tiny, policy: {model: m}, rewards: [{name: r}], data: {path: d.jsonl}}"
RECIPES = [recipe.name for recipe in list_recipes()]


def parse(text: str, *overrides: str) -> TrainConfig:
    return parse_config(text, "tiny.yaml", overrides)


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 7)
)
"""A short text whose anchors stand for millions of entries."""


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    return str(caught.value).splitlines()


# What comes back


@pytest.mark.parametrize("recipe", RECIPES)
def test_dumped_config_loads_back_equal(recipe, tmp_path):
    config = load_config(recipe)
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(str(path)) == config


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
yaml_like = st.sampled_from(
    ["no", "on", "1e-4", "010", "0x1F", "~", "", "1:30", "2024-01-01", "<<", "=", ".inf", "a: b"]
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words | yaml_like,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | yaml_like, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.integration
@given(st.dictionaries(words | yaml_like, values, max_size=4), words | yaml_like)
def test_arguments_and_texts_survive_a_round_trip(args, text):
    smallest = parse(SMALLEST)
    changes = {"policy": smallest.policy.model_copy(update={"revision": text})}
    config = smallest.model_copy(update=changes | {"rewards": (RewardConfig(name="r", args=args),)})
    written = dump_config(config)
    assert parse(written) == config
    assert yaml.safe_load(written)["rewards"][0]["args"] == args  # YAML 1.1 readers agree


def test_scalars_follow_yaml_1_2():
    config = parse(SMALLEST, "optimizer.lr=1e-4", "name=no", "training.iterations=1000", "policy.revision=on")
    assert config.optimizer.lr == 1e-4
    assert config.name == "no"
    assert config.policy.revision == "on"
    assert config.training.iterations == 1000


def test_partial_sections_keep_the_defaults_of_their_field():
    """DiffusionNFT's advantage clips at 5 and its KL compares velocities; the classes' own defaults differ."""
    config = parse(SMALLEST, "algorithm={name: diffusion_nft, kl: {coef: 0.1}, advantage: {ddof: 1}}")
    assert config.algorithm.kl.kind == "velocity_mse"
    assert config.algorithm.kl.coef == 0.1
    assert config.algorithm.advantage.clip == 5.0
    assert DiffusionNFTConfig(kl={"coef": 0.1}).kl.kind == "velocity_mse"
    assert DiffusionNFTConfig(kl=KLConfig(coef=0.1)).kl.kind is None  # a whole section is taken as it is


def test_sections_without_a_name_change_the_default_algorithm():
    assert parse(SMALLEST, "algorithm.clip.low=0.5").algorithm.clip.low == 0.5
    assert parse(SMALLEST).algorithm.name == "grpo"


# Overrides


def test_overrides_set_scalars_lists_maps_and_arguments():
    config = parse(
        SMALLEST,
        "rewards.0.weight=2",
        "rewards.1={name: second, args: {a: 1}}",
        "rewards.1.args.b.c=[x, 2]",
        "optimizer.betas.1=0.95",
        "policy.lora.targets.0=to_q",
        "evaluation.sampling.steps=3",
        "sampling.pipeline_args={max_sequence_length: 1}",
        "run.trackers=[wandb]",
        "data.validation=shapeworld:validation",
        "data.micro_batch=",
    )
    assert config.rewards[0].weight == 2
    assert config.rewards[1].args == {"a": 1, "b": {"c": ["x", 2]}}
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.policy.lora.targets == ("to_q",)
    assert config.evaluation.sampling.steps == 3
    assert config.sampling.pipeline_args == {"max_sequence_length": 1}
    assert config.run.trackers == ("wandb",)
    assert config.data.validation == "shapeworld:validation"
    assert config.data.micro_batch is None


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["seed=1", "seed=2"], "seed=1 and seed=2 both set seed"),
        (["a=1", "training.kl_budget=1", "training.max_kl=2"], "both set training.max_kl"),
        (["optimizer.lr=1", "optimizer={lr: 2}"], "optimizer.lr=1 and optimizer={lr: 2} both set optimizer.lr"),
    ],
)
def test_two_overrides_of_the_command_line_that_set_one_key_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        check_set_once(overrides)
    check_set_once(["optimizer={lr: 2}", "optimizer.lr=1", "seed=1", "seeds.2=1", "no override"])


def test_the_last_override_wins():
    assert parse(SMALLEST, "seed=1", "seed=2").seed == 2


@pytest.mark.parametrize(
    "override, message",
    [
        ("seed", "'seed' is not an override"),
        ("=3", "'=3' is not an override"),
        ("data..path=3", "is not an override"),
        ("rewards.3.name=x", "rewards is a list of 1"),
        ("rewards.first.name=x", "rewards is a list of 1"),
        ("policy.model.x=1", "policy.model is a single value and has no keys"),
        ("seed=-1", "seed: got -1, expected greater than or equal to 0"),
        ("name=../../x", "name: got '../../x', expected the name of a run, which is part of its folder"),
        ("name='..'", "name: got '..', expected the name of a run, which is part of its folder"),
        ("seed=9223372036854775808", "seed: got 9223372036854775808, expected less than 9223372036854775808"),
        ("evaluation.seed=-1", "evaluation.seed: got -1, expected greater than or equal to 0"),
        ("name=123", "name: got 123, expected text (in quotes, if it looks like a number)"),
        ("seed=[1", "not valid YAML"),
        ("rewards={}", "rewards: got a map, expected a list"),
        ("policy=shapeworld", "policy: got 'shapeworld', expected a map"),
        ("sampling=null", "sampling: got null, expected a map: write {} for the defaults"),
        ("rewards=null", "rewards: got null, expected a list: write [] for none"),
        ("rewards.0.args={a: 1, a: 2}", "a is already set in line 1"),
    ],
)
def test_wrong_overrides_are_rejected(override, message):
    (line,) = problems(SMALLEST, override)
    assert message in line
    assert line.startswith("command line")


def test_overrides_below_a_wrong_value_do_not_hide_it():
    assert "policy is 'shapeworld', not a map" in problems("policy: shapeworld", "policy.train=full")[0]


# Mistakes in the file


def test_unknown_keys_are_reported_with_line_and_nearest_key():
    text = "name: tiny\npolicy: {model: m}\nrewards: [{name: r}]\ndata: {path: d}\nalgorithm:\n  clip:\n    hihg: 1\n"
    assert problems(text) == [
        "tiny.yaml:7: algorithm.clip.hihg is not a key of ClipConfig: did you mean algorithm.clip.high?"
    ]


def test_all_problems_are_reported_with_their_place():
    text = "name: tiny\npolcy: {model: m}\nrewards:\n- {name: r}\n- {weight: heavy}\ndata: {path: d, groups: -1}\n"
    assert problems(text, "sampling.steps=ten", "optimizer.lr=0", "sampling.transition.name=flowsde") == [
        "tiny.yaml:2: polcy is not a key of TrainConfig: did you mean policy?",  # and policy is not called missing
        "command line: sampling.steps: got 'ten', expected a whole number",
        "command line: sampling.transition.name: got 'flowsde', expected ode or flow_sde or dance_sde or noisy_ode "
        "or cps or ddim or native: "
        "did you mean flow_sde?",
        "tiny.yaml:5: rewards.1.name is missing: As registered (`mmrl rewards list`), "
        "or `path/to/file.py:function` for one of your own.",
        "tiny.yaml:5: rewards.1.weight: got 'heavy', expected a number",
        "tiny.yaml:6: data.groups: got -1, expected greater than 0",
        "command line: optimizer.lr: got 0, expected greater than 0",
    ]


def test_overrides_replace_values_of_the_file():
    (line,) = problems(
        "name: tiny\npolicy: {model: m}\nrewards: [{name: r}]\ndata: {path: d, groups: 8}", "data.groups=0"
    )
    assert line == "command line: data.groups: got 0, expected greater than 0"


@pytest.mark.parametrize(
    "value, message",
    [("8.0", "a whole number"), ("true", "a whole number"), ("'8'", "a whole number"), ("null", "a whole number")],
)
def test_values_of_another_type_are_rejected(value, message):
    (line,) = problems(SMALLEST, f"data.groups={value}")
    assert line.endswith(f"expected {message}")


def test_infinite_learning_rates_are_rejected():
    assert "finite" in problems(SMALLEST, "optimizer.lr=.inf")[0]


def test_unknown_algorithm_names_are_rejected():
    (line,) = problems(SMALLEST, "algorithm={name: grop, clip: {low: 1}}")
    assert line.startswith("command line: algorithm.name: got 'grop', expected grpo or ") and " or dr_grpo or " in line
    assert " or diffusion_nft or " in line and line.endswith(": did you mean grpo?")


def test_keys_of_another_algorithm_are_rejected():
    (line,) = problems(SMALLEST, "algorithm={name: grpo, beta: 1}")
    assert line.startswith("command line: algorithm.beta is not a key of GRPOConfig")


def test_duplicate_keys_are_reported_with_both_lines():
    assert problems("name: a\ndata:\n  path: x\n  path: y\nname: b\n") == [
        "tiny.yaml:4: data.path is already set in line 3",
        "tiny.yaml:5: name is already set in line 1",
    ]


@pytest.mark.parametrize(
    "text, message",
    [
        ("name: [", "tiny.yaml:1: not valid YAML"),
        ("name: !!python/object:os.system x", "tiny.yaml:1: not valid YAML"),
        ("a: &a {b: *a}", "an anchor that holds itself"),
        ("[1, 2]: x", "a key is a word"),
        ("- 1", "tiny.yaml: got a list, expected a map"),
        ("name: \x00", "tiny.yaml: not valid YAML"),
        ("1: x", "1 is not a key of TrainConfig"),
        ("name: a\nseed: " + "1" * 5000, "tiny.yaml:2: seed cannot be read: Exceeds the limit"),
        ("name: !!int a", "tiny.yaml:1: name cannot be read: invalid literal"),
        ("!!float a: 1", "tiny.yaml:1: a cannot be read: could not convert"),
        ("name: a\nx: " + "[" * 2000 + "]" * 2000, "tiny.yaml:2: nested in more than 100 levels"),
        (LAUGHS, "tiny.yaml: its anchors stand for more than"),
        ("policy: {kind: [vlm], model: x}", "tiny.yaml:1: policy.kind: got"),
    ],
)
def test_documents_that_are_no_recipe_are_rejected(text, message):
    assert any(message in line for line in problems(text))


def test_empty_files_are_reported_with_the_missing_keys():
    missing = [line.split()[1] for line in problems("")]
    assert missing == ["name", "policy", "data"]


def test_files_that_are_not_text_are_rejected(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_config(str(tmp_path / "x.yaml"))


# Suggestions

VARIANTS = {name: f"algorithm: {{name: {name}}}" for name in ("grpo", "diffusion_nft")}
KEYS = [
    (variant, path)
    for variant in VARIANTS
    for path in key_paths(TrainConfig, {"algorithm": {"name": variant}})
    if isinstance(path[-1], str)
]


@st.composite
def typos(draw):
    """A key path, and the same path with one letter of its last key dropped, added, changed or swapped."""
    variant, path = draw(st.sampled_from(KEYS))
    key, at = path[-1], draw(st.integers(0, len(path[-1]) - 1))
    letter = draw(st.sampled_from(string.ascii_lowercase + "_"))
    wrong = draw(
        st.sampled_from(
            [
                key[:at] + key[at + 1 :],
                key[:at] + letter + key[at:],
                key[:at] + letter + key[at + 1 :],
                key[:at] + key[at + 1 : at + 2] + key[at] + key[at + 2 :],
            ]
        )
    )
    siblings = {known[-1] for v, known in KEYS if v == variant and known[:-1] == path[:-1]}
    assume(wrong and wrong not in siblings)
    return variant, path, (*path[:-1], wrong)


@given(typos())
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_misspelt_keys_are_reported_with_the_right_one(typo):
    variant, right, wrong = typo
    (line,) = problems(f"{SMALLEST[:-1]}, {VARIANTS[variant]}}}", f"{dotted(wrong)}=1")
    message = line.removeprefix(f"command line: {dotted(wrong)} is not a key of ")
    assert message != line
    assert dotted(right) in message.partition("did you mean ")[2].removesuffix("?").split(" or ")


@pytest.mark.parametrize(
    "wrong, right",
    [("lr", "optimizer.lr"), ("learning_rate", "optimizer.lr"), ("data.num_generations", "data.group_size")],
)
def test_misplaced_keys_are_reported_with_the_right_one(wrong, right):
    assert problems(SMALLEST, f"{wrong}=1")[0].endswith(f"did you mean {right}?")


def test_settings_of_adapters_on_the_command_line_are_refused_where_whole_weights_are_trained():
    with pytest.raises(ConfigError) as error:
        load_config("quickstart", ["policy.lora.rank=4"])
    assert str(error.value) == (
        "command line: policy.lora.rank has no effect with policy.train: full; add policy.train=lora"
    )
    assert load_config("quickstart", ["policy.lora.rank=4", "policy.train=lora"]).policy.lora.rank == 4
    written = dump_config(load_config("quickstart"))  # has policy.lora among its defaults
    assert parse_config(written, "config.yaml").policy.train == "full"


@pytest.mark.parametrize("key", sorted(ABSENT_KEYS))
def test_absent_keys_are_refused_with_a_reason_and_another_way(key):
    (line,) = problems(SMALLEST, f"{key}=2")
    assert line.startswith(f"command line: {key} is not a key of RunConfig: one picture or video is not divided")
    assert line.endswith("choose run.place: strict, which divides the model, and policy.gradient_checkpointing")


def test_unknown_keys_without_a_near_match_list_the_known_keys():
    assert problems(SMALLEST, "algorithm.clip.xyzzy=1") == [
        "command line: algorithm.clip.xyzzy is not a key of ClipConfig, whose keys are low, high, dual"
    ]


def test_a_misspelt_key_of_a_reward_model_names_one_of_its_own_keys():
    with pytest.raises(ConfigError, match=r"training.stesp is not a key of .*: did you mean training.steps\?"):
        load_reward_recipe("shapes-preferences", ["training.stesp=3"])
    with pytest.raises(ConfigError, match=r"^command line: head.kind: got 'foo'"):
        load_reward_recipe("shapes-preferences", ["head.kind=foo"])
