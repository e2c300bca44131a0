"""Old keys of a configuration: recipes, overrides and runs with them still load, each with one warning."""

from __future__ import annotations

import warnings

import pytest
import yaml

from mmrl.config import ConfigError, TrainConfig, dump_config
from mmrl.config.loading.load import parse_config
from mmrl.config.loading.overrides import check_resume_overrides
from mmrl.config.loading.renamed import RENAMED_KEYS, rename_keys
from mmrl.config.loading.schema import dotted, key_paths

TEXT = "name: tiny\npolicy: {kind: pipeline, model: m}\nrewards: [{name: r}]\ndata: {path: d.jsonl}\n"
VLM = "name: tiny\npolicy: {kind: vlm, model: m}\ndata: {path: d.jsonl}\n"
LEARNED = "{low: 0.1, high: 0.9, pace: 5.0}"
BEST_OF = "{name: rejection_sft, advantage: {min_value: 1.0}}"

OLD_AND_NEW = [
    (TEXT, "algorithm={name: diffusion_nft, times: 4}", "algorithm={name: diffusion_nft, num_noise_levels: 4}"),
    (TEXT, "algorithm.advantage.contrast=0.5", "algorithm.advantage.extremes_threshold=0.5"),
    (TEXT, BEST_OF.replace("min_value", "at_least").join(["algorithm=", ""]), f"algorithm={BEST_OF}"),
    (TEXT, "sampling.branch={at: [0], ways: 3}", "sampling.branch={at: [0], branching_factor: 3}"),
    (
        TEXT,
        f"sampling.transition={{name: noisy_ode, learned: {LEARNED}}}",
        f"sampling.transition={{name: noisy_ode, learned: {LEARNED.replace('pace', 'lr_scale')}}}",
    ),
    (TEXT, "evaluation.sampling={branch: {ways: 3}}", "evaluation.sampling={branch: {branching_factor: 3}}"),
    (TEXT, "data.draws.name=dynamic", "data.group_sampling.name=dynamic"),
    (TEXT, "media.on_bad=exclude", "media.on_error=exclude"),
    (TEXT, "training.kl_budget=0.1", "training.max_kl=0.1"),
    (VLM, "policy.vision={train: true, pace: 0.1}", "policy.vision={train: true, lr_scale: 0.1}"),
    (VLM, "policy.connector.pace=0.1", "policy.connector.lr_scale=0.1"),
    (VLM, "warmup={iterations: 3}", "pretraining={iterations: 3}"),
    (
        VLM,
        "warmup={iterations: 3, algorithm: {name: sft, times: 2}}",
        "pretraining={iterations: 3, algorithm: {name: sft, num_noise_levels: 2}}",
    ),
]


def parse(text: str, *overrides: str) -> TrainConfig:
    return parse_config(text, "tiny.yaml", overrides)


@pytest.mark.parametrize(("text", "old", "new"), OLD_AND_NEW)
def test_override_with_an_old_key_sets_the_new_one(text, old, new):
    with pytest.warns(FutureWarning, match="command line: .* is called .* now"):
        config = parse(text, old)
    assert config == parse(text, new)


@pytest.mark.parametrize(("text", "old", "new"), OLD_AND_NEW)
def test_run_with_an_old_key_loads_with_a_warning_naming_the_line(text, old, new):
    """A run's config.yaml holds every key, so each of its sections has all the old names."""
    current = parse(text, new)
    written = yaml.safe_load(dump_config(current))
    for before, after in reversed(RENAMED_KEYS.items()):
        *above, key = after.split(".")
        section = written
        for name in above:
            section = (section or {}).get(name)
        if section and key in section:
            section[before.rpartition(".")[2]] = section.pop(key)
    with pytest.warns(FutureWarning, match=r"tiny\.yaml:\d+: "):
        assert parse(yaml.safe_dump(written)) == current


def test_old_keys_warn_once_and_new_keys_never():
    old = TEXT + "training: {kl_budget: 0.1}\nmedia: {on_bad: exclude}\n"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parse(old)
    assert [str(each.message).partition(":")[2].partition(" now")[0] for each in caught] == [
        "6: media.on_bad is called media.on_error",
        "5: training.kl_budget is called training.max_kl",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse(TEXT, "training.max_kl=0.1")


def test_old_and_new_key_together_raise():
    with pytest.raises(ConfigError, match=r"training\.max_kl: it is also there under its old name, kl_budget"):
        parse(TEXT + "training: {kl_budget: 0.1, max_kl: 0.2}\n")


def test_override_replaces_an_old_key_of_the_file():
    with pytest.warns(FutureWarning, match="training.kl_budget"):
        assert parse(TEXT + "training: {kl_budget: 0.1}\n", "training.max_kl=0.2").training.max_kl == 0.2


def test_resume_accepts_old_names_of_changeable_keys():
    check_resume_overrides(["training.kl_budget=1", "training.max_kl=1"])


def test_renaming_keeps_order_and_other_keys():
    document = {"a": 1, "training": {"iterations": 2, "kl_budget": 3, "epochs": 4}, "data": "text"}
    renamed, found = rename_keys(document)
    assert found == {"training.kl_budget": "training.max_kl"} and list(renamed) == list(document)
    assert list(renamed["training"]) == ["iterations", "max_kl", "epochs"]
    assert document["training"]["kl_budget"] == 3


def test_every_new_key_exists():
    kinds = [
        {"algorithm": {"name": "diffusion_nft"}, "pretraining": {"algorithm": {"name": "sft"}}},
        {"algorithm": {"name": "rejection_sft"}, "policy": {"kind": "vlm"}},
    ]
    known = {dotted(path) for kind in kinds for path in key_paths(TrainConfig, kind)}
    missing = set(RENAMED_KEYS.values()) - known
    assert all(key.startswith("pretraining.algorithm.advantage") for key in missing), missing
