"""The files of studies: every key is checked, with its line, before anything is loaded."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mmrl.build.config_checks import check
from mmrl.build.policies import without_exploration
from mmrl.errors import ConfigError
from mmrl.studies.inference_settings import evaluated_with
from mmrl.studies.runner import StudyOptions, arm_config, bill
from mmrl.studies.study import list_studies, load_study

GOOD = """\
paper: {key: x, title: X}
claim: {text: "a beats b", test: a > b}
recipe: quickstart
arms:
  a: {optimizer.lr: 1.0e-4}
  b: {}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "x.yaml"
    path.write_text(text)
    return str(path)


def test_a_study_names_its_arms_and_comparisons(tmp_path):
    study = load_study(write(tmp_path, GOOD))
    assert study.name == "x"
    assert list(study.arms) == ["a", "b"]
    assert study.comparisons[0].contrasts[0].weights == {"a": 1.0, "b": -1.0}


def test_a_sweep_is_written_out_as_arms(tmp_path):
    text = GOOD.replace("arms:\n  a: {optimizer.lr: 1.0e-4}\n  b: {}\n", "sweep: {name: w, key: inference.rlg, "
                        "values: [0, 0.5]}\n").replace("a > b", "increasing in w")  # fmt: skip
    study = load_study(write(tmp_path, text))
    assert study.arms == {"w=0": {"inference.rlg": 0}, "w=0.5": {"inference.rlg": 0.5}}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("recipe: quickstart", "recipes: quickstart", r"x.yaml:3: recipes is not a key of StudyConfig: did you mean r"),
        ("title: X", "titel: X", "x.yaml:1: paper.titel is not a key of PaperConfig: did you mean title"),
        ("a > b", "a > c", "there is no arm c; there are a, b, base"),
        ("a > b", "a = b within 0.0.2", "'a = b within 0.0.2' is no test: write"),
        ("a > b", "a = b within 2 %", "'a = b within 2 %' is no test: write"),
        ("  b: {}\n", "  base: {}\n", "x.yaml: `base` is every run before training; choose another name"),
        (
            "  b: {}\n",
            "  b: {}\nseeds: [0, 1]\n",
            r"x.yaml:7: seeds: got \[0, 1\], expected a map of start, first, most, ",
        ),
        ("  b: {}\n", "  b: {}\ntried: one\n", "x.yaml:7: tried: got 'one', expected a list"),
        ("  b: {}\n", "  b:\n", "x.yaml:6: arms.b: got null, expected a map: write {} for the defaults"),
        ("claim: ", "claims: ", "x.yaml:2: claims: got .*, expected a list"),
        ("  b: {}\n", "  b: {}\nseeds: {first: two}\n", "x.yaml:7: seeds.first: got 'two', expected a whole number"),
        ("recipe: quickstart", "", "exactly one of `recipe`, `score` and `experiment`"),
        ("  b: {}\n", "  b: {}\nseeds: {first: 3, most: 6}\n", "`most` goes with `stop: sequential`"),
        ("  b: {}\n", "  b: {}\nbudget: {rows: 10, iterations: 3}\n", "exactly one of rows, tokens, iterations"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place(tmp_path, old, new, message):
    with pytest.raises(ConfigError, match=message):
        load_study(write(tmp_path, GOOD.replace(old, new)))


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="there is no study nothing-like-it"):
        load_study("nothing-like-it")


def test_every_shipped_study_can_be_read():
    names = [study.name for study in list_studies()]
    assert len(names) == len(set(names))


def test_a_study_of_the_suites_own_has_a_title_and_no_key(tmp_path):
    study = load_study(write(tmp_path, GOOD.replace("key: x, ", "")))
    assert study.config.paper.key is None
    assert study.config.paper.title == "X"


@pytest.mark.parametrize(
    ("on", "common", "key"),
    [("greedy", "{}", "evaluation.greedy"), ("heldout", "{data.heldout: null}", "data.heldout")],
)
def test_an_arm_that_is_not_evaluated_on_what_is_measured_is_refused(on, common, key, tmp_path):
    text = GOOD + f"common: {common}\nalso: [{{metric: total, on: {on}}}]\n"
    with pytest.raises(ConfigError, match=rf"x\.yaml, arm a: the study measures on {on}: set {key} in its `common`"):
        arm_config(load_study(write(tmp_path, text)), "a", 0, StudyOptions())


@pytest.mark.parametrize("name", [study.name for study in list_studies() if study.config.recipe is not None])
def test_every_arm_of_a_shipped_study_can_be_trained(name):
    study = load_study(name)
    for arm in study.arms:
        config, _ = arm_config(study, arm, 0, StudyOptions())
        check(config)
        assert config.data.validation, arm


def test_the_best_of_more_answers_than_are_drawn_is_refused_before_training(tmp_path):
    best = "decide: {metric: shapeworld, draws: best, of: 16}\ncommon: {evaluation.samples: %d}\n"
    study = load_study(write(tmp_path, GOOD + best % 8))
    with pytest.raises(ConfigError, match=r"arm a: the best of 16 answers is measured, and evaluation\.samples is 8"):
        arm_config(study, "a", 0, StudyOptions())
    study = load_study(write(tmp_path, GOOD + best % 16))
    assert arm_config(study, "a", 0, StudyOptions())[0].evaluation.samples == 16


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("inference.rgl: 1.5", r"inference\.rgl is no setting of inference: did you mean rlg\?"),
        (
            "inference.best_of: 4",
            r"inference\.best_of is no setting of inference: there are rlg, lora_strength, guide, ",
        ),
        ("inference.rlg: fast", r"inference\.rlg: got 'fast', expected a number"),
        ("inference.guide: clip_score", r"inference\.guide: got 'clip_score', expected a map of weights by reward"),
        (
            "inference.guide.clip_skore: 1",
            r"inference\.guide: there is no reward 'clip_skore': did you mean clip_score",
        ),
        ("inference.lora_strength: 0.5", r"there is no LoRA with policy\.train: full; use inference\.rlg"),
        (
            "inference.sampling.stepz: 4",
            r"sampling\.stepz is not a key of SamplingConfig: did you mean inference\.samp",
        ),
        ("inference.logits: {base: 1}", r"inference\.logits: policies of kind pipeline add no logits"),
        ("recipe: shapes-reasoning, inference.rlg: 2", r"inference\.rlg: policies of kind vlm have no denoisers"),
    ],
)
def test_a_wrong_setting_of_inference_is_refused_before_training(setting, message, tmp_path):
    study = load_study(write(tmp_path, GOOD.replace("  b: {}", f"  b: {{{setting}}}")))
    with pytest.raises(ConfigError, match=rf"x\.yaml, arm b: .*{message}"):
        arm_config(study, "b", 0, StudyOptions())


def test_settings_of_inference_leave_the_trained_configuration_as_it_is(tmp_path):
    text = GOOD.replace("  b: {}", "  b: {optimizer.lr: 1.0e-4, inference.sampling.steps: 4, inference.rlg: 2}")
    study = load_study(write(tmp_path, text))
    config, settings = arm_config(study, "b", 0, StudyOptions())
    assert config == arm_config(study, "a", 0, StudyOptions())[0]
    changed = evaluated_with(config, settings)
    own = without_exploration(config.sampling)
    assert changed.evaluation.sampling == own.model_copy(update={"steps": 4})
    assert changed.sampling == config.sampling


def test_a_seed_of_an_arm_is_refused(tmp_path):
    study = load_study(write(tmp_path, GOOD.replace("  b: {}", "  b: {seed: 5}")))
    with pytest.raises(ConfigError, match=r"x\.yaml, arm b: seed: .* with the key `seeds`"):
        arm_config(study, "b", 0, StudyOptions())


def test_rows_that_are_no_whole_number_of_iterations_name_the_arm(tmp_path):
    study = load_study(write(tmp_path, GOOD + "budget: {rows: 17}\n"))
    with pytest.raises(ConfigError, match=r"x\.yaml, arm a: budget\.rows: 17 rows are no whole number"):
        arm_config(study, "a", 0, StudyOptions())


def test_the_bill_of_a_budget_in_cpu_seconds_states_these(tmp_path):
    study = load_study(write(tmp_path, GOOD + "budget: {cpu_seconds: 90}\n"))
    rows = dict(bill(study, StudyOptions(root=tmp_path / "runs")))
    assert re.fullmatch(r"90 CPU-seconds of iterations of \d+ rows; seed 0: to be trained", rows["a"])
