"""Settings of `models`, `distill` and `mix` that are refused before a model is loaded, by key."""

from __future__ import annotations

import pytest

from mmrl.build.training_setup import check, check_processes
from mmrl.config.loading.load import dump_config, load_config, parse_config
from mmrl.errors import ConfigError

TEACHER = "models={teacher: {model: 'shapeworld:sums'}}"
MIX = "algorithm={name: mix, terms: [{name: grpo}, {name: distill, teacher: teacher, weight: 0.2}]}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["models={t: {model: x, train: lora}}"], r"models.t.train: .* one model of a run is trained, the policy"),
        (["models={t: {model: x, of: policy}}"], "either model, the name of another model, or of: policy"),
        (["models={t: {}}"], "either model"),
        (["models={t: {model: x, ema: 0.9}}"], "every and ema of a snapshot"),
        (["models={t: {of: policy, ema: 1.0}}"], "models.t.ema"),
        (["models={t: {of: policy, steps: 1}}"], "steps"),
        (["models={policy: {of: policy}}"], "models.policy: this is the name of the policy itself"),
        (["algorithm={name: distill, teacher: t}"], r"algorithm.teacher: there is no model t in models \(it is empty"),
        ([TEACHER, "algorithm={name: distill, teacher: t}"], r"no model t in models \(teacher\)"),
        ([MIX], r"algorithm.terms.1.teacher: there is no model teacher"),
        (["algorithm={name: mix, terms: []}"], "algorithm.terms"),
        (["algorithm={name: mix, terms: [{name: sft}]}"], "none learns from the policy's own answers"),
        (["algorithm={name: mix, terms: [{name: grpo, weight: 0}]}"], "all weights are 0"),
        (["algorithm={name: mix, terms: [{name: grpo}, {name: rloo}]}"], "two have different advantages"),
        (["algorithm={name: mix, terms: [{name: grpo}, {name: dpo}]}"], "terms.1: dpo is no term"),
        (["algorithm={name: mix, terms: [{name: mix, terms: [{name: grpo}]}]}"], "a mix in a mix"),
        (["algorithm={name: grpo, weight: 0.5}"], "algorithm.weight: grpo is alone"),
        ([TEACHER, "run.overlap.lag=1"], "models: snapshots are taken between iterations"),
        (["evaluation.logits={t: 1.0}"], r"evaluation.logits.t: there is no such model in models; the names are"),
        (["evaluation.logits={policy: 0.0}"], "evaluation.logits: no model has a weight other than 0"),
        (["algorithm={name: online_dpo, axis: brief}"], "algorithm.axis: it reads the two texts of a sample"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", overrides))


def test_pipelines_have_no_models_and_no_distillation():
    with pytest.raises(ConfigError, match="models: policies of kind pipeline score no texts"):
        check(load_config("quickstart", [TEACHER]))
    with pytest.raises(ConfigError, match=r"evaluation\.logits: policies of kind pipeline add no logits"):
        check(load_config("quickstart", ["evaluation.logits={policy: 1.0}"]))
    with pytest.raises(ConfigError, match=r"algorithm\.reference_free: the loss of media compares errors"):
        check(load_config("quickstart", ["algorithm={name: dpo, reference_free: true}"]))


def test_several_processes_train_no_mix_of_several_terms():
    config = load_config("shapes-reasoning", [TEACHER, MIX])
    check(config)
    with pytest.raises(ConfigError, match="mix measures the gradient of each term in one process"):
        check_processes(config, 2)


def test_a_mix_is_written_and_read_again():
    config = load_config("shapes-reasoning", [TEACHER, MIX, "models.slow={of: policy, ema: 0.9, every: 10}"])
    assert parse_config(dump_config(config), "again") == config
    assert config.algorithm.terms[1].weight == 0.2 and config.models["slow"].changes
