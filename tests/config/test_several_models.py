"""Settings of `models`, `distill` and `mix` that are refused before a model is loaded, by key."""

from __future__ import annotations

import pytest

from mmrl.build.config_checks import check, check_processes
from mmrl.build.training_setup import samples_of_terms
from mmrl.config.loading.load import dump_config, load_config, parse_config
from mmrl.errors import ConfigError

TEACHER = "models={teacher: {model: 'shapeworld:sums'}}"
PARTNER = "models={partner: {model: 'shapeworld:sums', train: lora}}", "stages=[{iterations: 2, train: partner}]"
MIX = "algorithm={name: mix, terms: [{name: grpo}, {name: distill, teacher: teacher, weight: 0.2}]}"

REPHRASED = "data.starts={name: rephrasing, args: {prompt: Say it again}}"
WRITTEN = "algorithm={{name: online_dpo, writers: {{{0}}}}}"
BALANCED = "algorithm={{name: mix, terms: [{{name: grpo}}{1}], balance: {0}}}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["models={t: {model: x, train: lora}}"], r"models.t.train: no stage trains it"),
        (["models={t: {of: policy, train: full}}"], "follows a model and is not trained itself"),
        (["models={t: {model: x, optimizer: {lr: 0.1}}}"], "an optimizer of a trained model alone"),
        (["models={s: {of: t}, t: {of: s}}"], "models.s.of: t is not trained here; snapshots follow policy"),
        (["models={t: {model: x}, s: {of: t}}"], "models.s.of: t is not trained here; snapshots follow policy"),
        ([*PARTNER, "optimizer.schedule=cosine"], "models.partner.optimizer.schedule: cosine ends with the run"),
        ([REPHRASED, "algorithm={name: online_dpo}"], "data.starts: a pair is two answers to the same prompt"),
        ([REPHRASED, "algorithm={name: p3o}"], "data.starts: p3o compares answers to the same prompt"),
        (
            [*PARTNER, "stages=[{iterations: 1, train: other}]"],
            "stages.0.train: other is not trained in this run, and policy",
        ),
        ([*PARTNER, "rounds=80"], "training.iterations, which must be at least 160"),
        (
            ["data.prompts={name: written, by: t, reader: {name: 'tests.data.test_written_prompts:Doubled'}}"],
            "data.prompts.by: t is no model of the run that writes texts",
        ),
        (["rounds=2"], "rounds: 2 rounds of stages, and there are no stages"),
        (["models={t: {model: x, of: policy}}"], "either model, the name of another model, or of: policy"),
        (["models={t: {}}"], "either model"),
        (["models={t: {model: x, ema: 0.9}}"], "every and ema of a snapshot"),
        (["models={t: {of: policy, ema: 1.0}}"], "models.t.ema"),
        (["models={t: {of: policy, steps: 1}}"], "steps"),
        (["models={t: {of: policy, offload: true}}"], "offload of a frozen model alone"),
        (["models={t: {model: x, train: lora, offload: true}}"], "offload of a frozen model alone"),
        (["models={policy: {of: policy}}"], "models.policy: this is the name of the policy itself"),
        (["algorithm={name: distill, teacher: t}"], r"algorithm.teacher: there is no model t in models \(it is empty"),
        ([TEACHER, "algorithm={name: distill, teacher: t}"], r"no model t in models \(teacher\)"),
        ([MIX], r"algorithm.terms.1.teacher: there is no model teacher"),
        (["algorithm={name: mix, terms: []}"], "algorithm.terms"),
        (["algorithm={name: mix, terms: [{name: sft}]}"], "none learns from the policy's own answers"),
        (["algorithm={name: mix, terms: [{name: grpo, weight: 0}]}"], "all weights are 0"),
        (["algorithm={name: mix, terms: [{name: grpo}, {name: rloo}]}"], "two have different advantages"),
        (["algorithm={name: mix, terms: [{name: grpo}, {name: dpo}]}"], "terms.1: dpo is no term"),
        (["algorithm={name: mix, terms: [{name: grpo}, {name: a_lol}]}"], "terms.1: a_lol is no term"),
        (["algorithm={name: mix, terms: [{name: mix, terms: [{name: grpo}]}]}"], "a mix in a mix"),
        (["algorithm={name: grpo, weight: 0.5}"], "algorithm.weight: grpo is alone"),
        (["algorithm={name: grpo, weight_end: 0.5}"], "algorithm.weight_end: grpo is alone"),
        (["algorithm={name: sft, path: x}"], "algorithm.path: sft alone learns from data.path"),
        ([BALANCED.format("{name: volatility}", "")], "volatility compares terms, and there is one"),
        ([BALANCED.format("{name: meta_gradient}", "")], "it chooses between two terms"),
        ([BALANCED.format("{name: meta_gradient, start: 0.99}", ", {name: sft}")], "start: 0.99 is not between least"),
        ([BALANCED.format("{name: volatile}", ", {name: sft}")], "algorithm.balance"),
        ([TEACHER, "run.overlap.lag=1"], "models: snapshots are taken between iterations"),
        (["evaluation.logits={t: 1.0}"], r"evaluation.logits.t: there is no such model in models; the names are"),
        (["evaluation.logits={policy: 0.0}"], "evaluation.logits: no model has a weight other than 0"),
        (["algorithm={name: online_dpo, axis: brief}"], "algorithm.axis: it reads the two texts of a sample"),
        (["algorithm={name: online_dpo, reference: t}"], r"algorithm.reference: there is no model t in models"),
        ([WRITTEN.format("chosen: t")], r"algorithm.writers.chosen: there is no model t in models \(it is empty"),
        ([TEACHER, WRITTEN.format("rejected: teacher"), "data.group_size=3"], "data.group_size: two writers share 3"),
        ([TEACHER, WRITTEN.format("chosen: teacher}, pairing: all")[:-1]], "algorithm.pairing: with writers"),
        (
            [TEACHER, WRITTEN.format("chosen: teacher"), "data.group_sampling={name: dynamic}"],
            "data.group_sampling: algorithm.wr",
        ),
        (
            [*PARTNER, "stages=[{iterations: 1, train: partner, begin: partner}]"],
            r"stages.0.begin: partner may begin as another model of the run \(policy\)",
        ),
        (["stages=[{iterations: 1, begin: t}]"], r"stages.0.begin: policy may begin as another model of the run \(\)"),
    ],
)
def test_what_cannot_work_is_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-reasoning", overrides))


def test_image_tokens_have_no_models_and_pipelines_none_that_are_trained():
    with pytest.raises(ConfigError, match="models: policies of kind image_tokens have no models"):
        check(load_config("shapes-ar", [TEACHER]))
    with pytest.raises(ConfigError, match=r"algorithm.writers: models beside the policy write texts"):
        check(load_config("quickstart", [WRITTEN.format("chosen: policy")]))
    with pytest.raises(ConfigError, match=r"algorithm.away: denoising steps are drawn to a teacher"):
        check(load_config("quickstart", [TEACHER.replace(":sums", ""), "algorithm={name: distill, away: true}"]))
    with pytest.raises(ConfigError, match=r"models.teacher.train: pipelines beside a pipeline are teachers"):
        check(load_config("quickstart", ["models={teacher: {model: shapeworld, train: full}}"]))
    with pytest.raises(ConfigError, match=r"evaluation\.logits: policies of kind pipeline add no logits"):
        check(load_config("quickstart", ["evaluation.logits={policy: 1.0}"]))
    with pytest.raises(ConfigError, match=r"algorithm\.reference_free: the loss of media compares errors"):
        check(load_config("quickstart", ["algorithm={name: dpo, reference_free: true}"]))


PAINTER = "models={painter: {kind: pipeline, model: shapeworld, train: lora}}"
REDRAWN = "data: {prompts: {name: written, by: policy, reader: {name: 'tests.data.test_written_prompts:Doubled'}}}"


def test_a_stage_of_another_kind_has_that_model_as_its_policy():
    stage = f"stages=[{{iterations: 2, train: painter, rewards: [{{name: clip_score}}], {REDRAWN}}}]"
    sampling = "models.painter.sampling={steps: 4, transition: {name: flow_sde}}"
    config = load_config("shapes-vlm", [PAINTER, sampling, "models.painter.lora={rank: 3}", stage])
    check(config)
    staged = config.staged(config.stages[0])
    assert (staged.policy.kind, staged.policy.model, staged.policy.lora.rank) == ("pipeline", "shapeworld", 3)
    assert (staged.sampling.kind, staged.sampling.steps) == ("denoising", 4)
    assert staged.data.validation is None and staged.data.group_size == config.data.group_size
    assert parse_config(dump_config(config), "again") == config
    assert config.sampling.kind == "tokens"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([PAINTER], "models.painter.train: no stage trains it"),
        (
            [PAINTER, "stages=[{iterations: 2, train: painter, rewards: [{name: clip_score}]}]"],
            r"stages.0: .*ode",
        ),
        (["models={t: {of: policy, kind: pipeline}}"], "a snapshot .of. is of its model's kind"),
        (["models={t: {model: x, lora: {rank: 2}}}"], "adapters of a model that is trained with lora alone"),
        (
            ["models={t: {kind: pipeline, model: x, sampling: {kind: tokens}}}"],
            "models.t.sampling.kind: a model of kind pipeline has denoising",
        ),
        (
            ["models={t: {kind: pipeline, model: x, train: lora, head: value}}"],
            "models.t.head: a critic estimates the rewards of texts",
        ),
        (
            ["models={t: {kind: pipeline, model: x}}", "data.prompts={name: written, by: t, reader: {name: captions}}"],
            "data.prompts.by: t is no model of the run that writes texts .policy.",
        ),
        (
            ["models={t: {kind: pipeline, model: x}}", "algorithm={name: distill, teacher: t}"],
            "algorithm.teacher: t is of kind pipeline, and the policy of kind vlm",
        ),
        (["models={t: {kind: pipeline, model: x}}", "evaluation.logits={t: 1.0}"], "evaluation.logits.t: .*pipeline"),
    ],
)
def test_models_of_two_kinds_that_cannot_work_are_refused_by_key(overrides, message):
    with pytest.raises(ConfigError, match=message):
        check(load_config("shapes-vlm", overrides))


def test_several_processes_train_a_mix_as_replicas():
    check_processes(load_config("shapes-reasoning", [TEACHER, MIX]), 2)
    with pytest.raises(ConfigError, match=r"run\.place: window divides the gradients of a mix's terms"):
        check_processes(load_config("shapes-reasoning", [TEACHER, MIX, "run.place=window"]), 2)


def test_a_stage_changes_parts_of_the_data_and_lists_in_models_are_read():
    changes = "stages=[{iterations: 2, train: partner, data: {groups: 4, prompts: {name: staged}}}]"
    config = load_config("shapes-reasoning", [PARTNER[0], changes, "models.partner.optimizer={betas: [0.5, 0.9]}"])
    staged = config.staged(config.stages[0])
    assert (staged.data.groups, staged.data.prompts.name, staged.data.group_size) == (4, "staged", 8)
    assert config.models["partner"].optimizer.betas == (0.5, 0.9)
    assert parse_config(dump_config(config), "again") == config
    with pytest.raises(ConfigError, match=r"stages\.0\.data\.rows is not a key"):
        load_config("shapes-reasoning", ["stages=[{iterations: 2, data: {rows: 4}}]"])


def test_several_processes_train_models_that_each_of_them_has_whole():
    config = load_config("shapes-reasoning", list(PARTNER))
    check(config)
    check_processes(config, 2)
    with pytest.raises(ConfigError, match=r"run\.place: window divides the policy, and models beside it need it whole"):
        check_processes(load_config("shapes-reasoning", [*PARTNER, "run.place=window"]), 2)
    decoder = ["models={decoder: {head: pixels, train: full}}", "algorithm={name: ranke}"]
    check_processes(load_config("shapes-ar", decoder), 2)
    with pytest.raises(ConfigError, match=r"run\.place: window divides the policy, and models beside it need it whole"):
        check_processes(load_config("shapes-ar", [*decoder, "run.place=window"]), 2)


def test_a_bare_number_is_the_balance_by_gradient_norms():
    for balance in ("2.0", "{gamma: 2.0}", "{name: gradient_norm, gamma: 2.0}"):
        config = load_config("shapes-reasoning", [BALANCED.format(balance, ", {name: sft}")])
        assert config.algorithm.balance.name == "gradient_norm" and config.algorithm.balance.gamma == 2.0
        assert parse_config(dump_config(config), "again") == config


def test_terms_of_a_mix_may_have_a_data_set():
    mix = "algorithm={name: mix, terms: [{name: grpo}, {name: sft, path: general.jsonl}, {name: sft}]}"
    algorithm = load_config("shapes-reasoning", [mix]).algorithm
    assert samples_of_terms(algorithm, lambda path: [path]) == {1: ["general.jsonl"]}
    assert samples_of_terms(algorithm.terms[0], lambda path: [path]) == {}


def test_a_reader_that_is_missing_is_named():
    prompts = "data.prompts={name: written, by: partner, reader: {name: 'tests.data.nowhere:X'}}"
    config = load_config("shapes-reasoning", [*PARTNER, prompts])
    check(config)  # a recipe may name a file that its user writes
    with pytest.raises(ConfigError, match="question reader"):
        config.data.prompts.reader.reader()


def test_a_mix_is_written_and_read_again():
    config = load_config("shapes-reasoning", [TEACHER, MIX, "models.slow={of: policy, ema: 0.9, every: 10}"])
    assert parse_config(dump_config(config), "again") == config
    assert config.algorithm.terms[1].weight == 0.2 and config.models["slow"].changes
