"""Calculations, their splits and traces, and the language models that write them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText, AutoProcessor

from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.data.sample import Sample
from mmrl.rewards import load
from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import reward_input
from mmrl.rollout_request import RolloutRequest
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld import splits
from mmrl_shapeworld.reasoning import pretraining, reasoner_model
from mmrl_shapeworld.reasoning.calculation_splits import FEW, HARD_RUN, LATER, PARTS, calculations
from mmrl_shapeworld.reasoning.calculations import FAMILIES, Calculation, part_of, sample_calculation
from mmrl_shapeworld.reasoning.traces import CARELESS, CLEAN, WAIT, right_trace, style_within, written_trace
from mmrl_shapeworld.shipped_models import REASONERS
from tools.shapeworld_pretrain import reasoner

EXAMPLE = Calculation(10, 3, "+*", (5, 7))


def scores(texts: list[str], samples: list[Sample]) -> torch.Tensor:
    """Return [N]: 1 for each right answer, 0 for wrong and unreadable ones."""
    items = [reward_input(sample, text, n, str(n)) for n, (text, sample) in enumerate(zip(texts, samples, strict=True))]
    return torch.as_tensor(load("numeric").score(items).values["numeric"]).nan_to_num(0.0)


def test_a_calculation_runs_from_left_to_right_modulo_its_number():
    assert str(EXAMPLE) == "3+5*7="
    assert EXAMPLE.values == (8, 6)
    assert Calculation(97, 90, "+-*", (9, 5, 3)).values == (2, 94, 88)


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_have_no_prompt_in_common(family):
    prompts = {part: [str(each) for each in calculations(f"{family}-{part}")] for part in PARTS}
    assert {part: len(found) for part, found in prompts.items()} == {part: size for part, (_, size) in PARTS.items()}
    sets = [set(found) for found in prompts.values()]
    assert len(set.union(*sets)) == sum(map(len, sets))
    for part in ("development", "validation", "longer"):
        assert len(set(prompts[part])) == len(prompts[part])
    again = calculations.__wrapped__(f"{family}-validation")
    assert [str(each) for each in again] == prompts["validation"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_later_prompts_are_the_second_half_of_validation_and_none_is_of_the_first(family):
    validation, later = calculations(f"{family}-validation"), calculations(f"{family}-validation-later")
    assert later == validation[512:] and len(later) == 512
    assert not {*validation[:512]} & {*later}
    assert splits.samples(f"{family}-validation-later")[0].demonstration is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_more_validation_prompts_are_of_the_same_purpose_and_lengths_and_none_of_validation(family):
    validation = calculations(f"{family}-validation")
    more, last = (calculations(f"{family}-validation-{part}") for part in ("more", "last"))
    assert len(set(more)) == len(more) == len(set(last)) == len(last) == 512
    assert not {*validation} & {*more} and not {*validation, *more} & {*last}
    assert {part_of(each) for each in (*more, *last)} == {"validation"}
    assert {each.operands for each in more[:256]} <= {*FAMILIES[family].operands}
    assert splits.samples(f"{family}-validation-more")[0].demonstration is None


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_some_hard_subtractions_have_one_or_two_or_more_by_chance(family):
    counts = Counter()
    for part, purpose in (("", "train"), ("-development", "development"), ("-validation", "validation")):
        found = calculations(f"{family}-some-subtractions{part}")
        assert {part_of(each) for each in found} == {purpose} and len(set(found)) == len(found)
        assert {each.operands for each in found} == {3, 4, 5}
        pairs = [zip(each.operators, each.digits, strict=True) for each in found]
        counts.update(sum(operator == "-" and digit in (8, 9) for operator, digit in some) for some in pairs)
    assert not counts[0] and counts[1] + counts[2] > 0.9 * counts.total() and min(counts[1], counts[2]) > 800
    train, development = (splits.samples(f"{family}-some-subtractions{part}") for part in ("", "-development"))
    assert train[0].demonstration == train[0].metadata["chain"] and development[0].demonstration is None


@pytest.mark.integration
@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_of_hard_subtractions_and_later_ones_are_those_of_their_purpose_alone(family):
    for part, purpose in (("", "train"), ("-development", "development"), ("-validation", "validation")):
        found = calculations(f"{family}-subtractions{part}")
        assert {part_of(each) for each in found} == {purpose} and len(set(found)) == len(found)
        assert {each.operands for each in found} == set(FAMILIES[family].operands[-3:])
        pairs = [zip(each.operators, each.digits, strict=True) for each in found]
        hard = [sum(operator == "-" and digit in (8, 9) for operator, digit in some) for some in pairs]
        assert min(hard) == min(4, FAMILIES[family].operands[-3] - 1)
    assert splits.samples(f"{family}-subtractions")[0].demonstration
    few = calculations(f"{family}-few-subtractions")
    assert few == calculations(f"{family}-subtractions")[:32]
    assert calculations(f"{family}-rarely-subtractions") == (*calculations(f"{family}-short"), *few)
    partly = calculations(f"{family}-partly-subtractions")
    assert partly[3::4] == calculations(f"{family}-subtractions") and len(partly) == 1024
    assert [each for place, each in enumerate(partly) if place % 4 < 3] == [*calculations(f"{family}-train")[:768]]
    later, whole = calculations(f"{family}-later-validation"), calculations(f"{family}-validation")
    assert len(set(later)) == 48 and not set(later) & set(whole[:LATER])
    assert {part_of(each) for each in later} == {"validation"}
    assert Counter(each.operands for each in later) == dict.fromkeys((2, *FAMILIES[family].operands[-2:]), 16)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_few_prompts_are_the_first_of_training_and_of_all_lengths(family):
    few = calculations(f"{family}-few")
    assert few == calculations(f"{family}-train")[:FEW] and len(set(few)) > 0.95 * FEW
    assert {each.operands for each in few} == set(FAMILIES[family].operands)
    samples = splits.samples(f"{family}-few")
    assert samples[0].id == f"{family}-few-0000" and samples[0].demonstration == right_trace(few[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_one_in_five_of_mostly_hard_prompts_is_one_of_training_and_the_others_are_longest(family):
    mixed = calculations(f"{family}-mostly-hard")
    ordinary = mixed[::HARD_RUN]
    assert len(mixed) == FEW and ordinary == calculations(f"{family}-train")[: len(ordinary)]
    hard = [each for place, each in enumerate(mixed) if place % HARD_RUN]
    assert {each.operands for each in hard} == set(FAMILIES[family].longest)
    assert min(FAMILIES[family].longest) >= FAMILIES[family].longer.stop
    assert calculations.__wrapped__(f"{family}-mostly-hard") == mixed
    assert all(sample.demonstration for sample in splits.samples(f"{family}-mostly-hard"))


@pytest.mark.parametrize("family", FAMILIES)
def test_reflections_follow_a_careless_answer_with_a_right_calculation(family):
    samples = splits.samples(f"{family}-reflections")[:200]
    assert [sample.prompt for sample in samples] == [str(each) for each in calculations(f"{family}-train")[:200]]
    first, second = zip(*(sample.demonstration["turns"] for sample in samples), strict=True)
    assert scores(list(second), samples).all() and 0.1 < scores(list(first), samples).mean() < 0.9
    assert not any(text.startswith("<think></think>") for text in second)
    assert 0.3 < np.mean(["=" in text for text in second]) < 0.7


@pytest.mark.parametrize("family", FAMILIES)
def test_announced_traces_are_the_fullest_within_their_budget(family):
    words, rng = reasoner_model.tokenizer(), np.random.default_rng(0)
    found = splits.samples(f"{family}-announced")[:400]
    assert {each.prompt.partition(";")[0] for each in found[1::2]} == {"4", "10", "20", "36"}
    assert not any(";" in each.prompt for each in found[::2])
    for operands, budget, most in (
        (2, 4, 4),
        (2, 10, 10),
        (4, 10, 7),
        (4, 20, 7),
        (3, 20, 16),
        (6, 36, 34),
        (9, 10, 4),
    ):
        drawn = sample_calculation(FAMILIES[family], rng, [operands])
        trace = written_trace(drawn, style_within(operands, budget, CLEAN), rng)
        assert len(words(trace)["input_ids"]) + 1 == most  # with the end token


def test_the_gap_of_thoughts_is_that_between_long_and_short_calculations():
    gap = load("mmrl_shapeworld.reasoning.thinking_gap:ThinkingGap")
    thought, direct = "<think>1</think>2", "<think></think>2"
    found = [
        gap.score([reward_input(Sample("a", prompt="?", metadata={"operands": count}), text, 0, "a")])
        for count in (2, 4, 5)
        for text in (thought, direct)
    ]
    assert [each.values["thinking_gap"][0] for each in found] == [-1, 0, 0, 0, 1, 0]
    failed = gap.score([reward_input(Sample("a", prompt="?"), thought, 0, "a")])
    assert failed.failures[0]["thinking_gap"].kind == "missing"


@pytest.mark.parametrize("family", FAMILIES)
def test_longer_calculations_have_more_operands_than_any_that_is_trained(family):
    trained = {each.operands for each in calculations(f"{family}-train")}
    assert trained == set(FAMILIES[family].operands)
    assert {each.operands for each in calculations(f"{family}-longer")} == set(FAMILIES[family].longer)
    assert max(trained) < FAMILIES[family].longer.start


def test_the_answers_of_remainders_are_near_uniform_and_those_of_sums_are_not():
    for family, most in (("sums", 0.3), ("remainders", 0.03)):
        commonest = Counter(each.answer for each in calculations(f"{family}-train")).most_common(1)[0][1]
        assert 1 / FAMILIES[family].modulus < commonest / 4096 < most


def test_samples_are_scored_by_what_stands_after_the_thoughts():
    sample = splits.samples("sums-train")[0]
    other = (sample.answer + 1) % 10
    texts = [
        sample.demonstration,
        f"<think></think>{sample.answer}",
        f"<think>{sample.answer}</think>{other}",
        f"<think>{sample.answer}",
        f"<think></think>{sample.answer} {other}",
    ]
    assert scores(texts, [sample] * len(texts)).tolist() == [1, 1, 0, 0, 0]
    assert sample.metadata["chain"] == sample.demonstration and not sample.rewards


def test_only_training_data_has_demonstrations():
    assert all(sample.demonstration for sample in splits.samples("remainders-train"))
    assert not any(sample.demonstration for sample in splits.samples("remainders-validation"))
    with pytest.raises(KeyError, match="sums-longer"):
        splits.samples("sums-other")


def test_a_clean_writer_is_right_in_each_style_and_a_careless_one_often_wrong():
    rng = np.random.default_rng(0)
    drawn = [sample_calculation(FAMILIES["sums"], rng) for _ in range(2000)]
    right = {}
    for name, writer in (("clean", CLEAN), ("careless", CARELESS)):
        texts = [written_trace(calculation, writer, rng) for calculation in drawn]
        right[name] = np.mean([text.endswith(f">{each.answer}") for text, each in zip(texts, drawn, strict=True)])
    assert right["clean"] == 1.0
    assert 0.3 < right["careless"] < 0.7
    assert right_trace(EXAMPLE) == "<think>3+5=8;8*7=6;</think>6"
    concise = replace(CLEAN, direct=0.0, concise=1.0)
    assert written_trace(EXAMPLE, concise, rng) == "<think>8 6</think>6"
    anew = replace(CLEAN, direct=0.0, concise=0.0, second_attempt=1.0)
    assert written_trace(EXAMPLE, anew, rng) == f"<think>3+5=8;8*7=6;{WAIT}3+5=8;8*7=6;</think>6"


def test_tokens_are_values_tags_and_bytes():
    words = reasoner_model.tokenizer()
    for text, count in (("<think>8 96</think>96", 5), ("3+5=8;wait3", 8), ("Hint: é 123", None)):
        ids = words(text)["input_ids"]
        assert words.decode(ids, skip_special_tokens=True) == text
        assert count is None or len(ids) == count


@pytest.mark.parametrize("family", REASONERS)
def test_plain_transformers_loads_the_shipped_models(family):
    folder = REASONERS[family]
    model = AutoModelForImageTextToText.from_pretrained(folder)
    language = sum(p.numel() for name, p in model.named_parameters() if "visual" not in name)
    assert 0.1e6 < language < 0.2e6
    assert AutoProcessor.from_pretrained(folder).tokenizer.get_vocab() == reasoner_model.tokenizer().get_vocab()
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 2e6


@pytest.fixture(scope="module", params=["sums", pytest.param("remainders", marks=pytest.mark.slow)])
def answered(request: pytest.FixtureRequest) -> tuple[str, list[Sample], dict[float, list[str]]]:
    """A family, some of its validation samples, and the base's answers to them by temperature."""
    policy = VLMPolicy.from_config(
        VLMConfig(model=str(REASONERS[request.param]), train="full"), TokenSamplingConfig(max_new_tokens=128)
    )
    samples = splits.samples(f"{request.param}-validation")[:256]
    texts = {}
    for temperature in (0.0, 1.0):
        sampling = TokenSamplingConfig(max_new_tokens=128, temperature=temperature)
        requests = [RolloutRequest(sample, 1, n, sampling=sampling) for n, sample in enumerate(samples)]
        with torch.no_grad():
            texts[temperature] = list(policy.rollout(requests, seed=0).media)
    return request.param, samples, texts


def test_the_base_is_neither_at_the_floor_nor_at_the_ceiling(answered):
    _, samples, texts = answered
    sampled, greedy = (scores(texts[temperature], samples).mean().item() for temperature in (1.0, 0.0))
    assert 0.25 < sampled < 0.6
    assert sampled < greedy < 0.9


def test_the_base_writes_all_styles_and_answers_after_its_thoughts(answered):
    _, _, texts = answered
    styles = Counter(
        "direct" if "<think></think>" in text else "verbose" if "=" in text else "concise" for text in texts[1.0]
    )
    assert min(styles.values()) > 0.1 * len(texts[1.0]) and len(styles) == 3
    assert sum(text.count("</think>") == 1 for text in texts[1.0]) > 0.97 * len(texts[1.0])
    assert any(WAIT in text for text in texts[1.0])


def test_the_warm_start_is_decided_by_its_seed_and_avoids_other_splits(tmp_path):
    made = []
    schedule = reasoner.Schedule(2, CARELESS, batch=6)
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        reasoner.train("sums", tmp_path / name, schedule, seed)
        made.append(load_file(tmp_path / name / "model.safetensors"))
    assert all(torch.equal(made[0][key], made[1][key]) for key in made[0])
    assert any(not torch.equal(made[0][key], made[2][key]) for key in made[0])
    rng = np.random.default_rng(0)
    assert {part_of(pretraining.training_calculation(FAMILIES["sums"], rng)) for _ in range(50)} == {"train"}


def test_the_warm_start_reads_a_batch_as_the_policy_does(tmp_path):
    """The prompt is the chat template's, and padding has no part in the loss."""
    words = reasoner_model.tokenizer()
    torch.manual_seed(0)
    model = reasoner_model.build(words).eval()
    long = Calculation(10, 1, "+++++", (1, 2, 3, 4, 5))
    traces = [right_trace(EXAMPLE), right_trace(long)]
    ((ids, starts),) = pretraining.batches(words, [EXAMPLE, long], traces, count=1)
    turn = [{"role": "user", "content": [{"type": "text", "text": str(EXAMPLE)}]}]
    prompt = reasoner_model.processor().apply_chat_template(turn, add_generation_prompt=True)
    assert words.decode(ids[0, : starts[0]]) == prompt
    total, count = pretraining.loss_of(model, ids, starts)
    parts = [
        pretraining.batches(words, [each], [trace], count=1)[0]
        for each, trace in zip((EXAMPLE, long), traces, strict=True)
    ]
    alone = [pretraining.loss_of(model, *part) for part in parts]
    assert count == sum(tokens for _, tokens in alone)
    assert torch.allclose(total, sum(loss for loss, _ in alone), rtol=1e-4)


def test_second_attempts_are_counted_before_the_thoughts_end():
    reward = load("mmrl_shapeworld.reasoning.second_attempts:SecondAttempts", most=2)
    sample = splits.samples("sums-train")[0]
    texts = ["<think>wait1 2</think>3", "<think>waitwaitwait</think>3", "<think>1</think>3wait", "<think>waitwait"]
    items = [reward_input(sample, text, n, str(n)) for n, text in enumerate(texts)]
    assert reward.score(items).values["second_attempts"].tolist() == [0.5, 1.0, 0.0, 0.0]
    with pytest.raises(RewardError, match="most is 0"):
        load("mmrl_shapeworld.reasoning.second_attempts:SecondAttempts", most=0)
