"""trl's own trainer learns from one of our rewards, and both adapters keep failures apart from zeros."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from mmrl.rewards import (
    GroupReward,
    InvalidAnswer,
    Reward,
    RewardError,
    RewardSuite,
    ScoringFailed,
    TooFewScored,
    as_trl,
    as_verl,
)
from mmrl.rewards.core.reward_errors import NotApplicable

WORDS = ["<pad>", "<eos>", "<unk>", "how", "many", *"0123456789"]


class Threes(Reward):
    """The share of an answer's words that are the right one."""

    name, needs, range = "threes", ("text", "references.answer"), (0.0, 1.0)

    def score_one(self, item):
        words = item.text.split()
        return sum(word == item.references["answer"] for word in words) / max(1, len(words))


class Scripted(Reward):
    """Does as the answer says."""

    name, needs, range, scheduled = "scripted", ("text",), (0.0, 1.0), True

    def score_one(self, item):
        raise NotImplementedError

    def score_in(self, item, context):
        if item.text == "broken":
            raise ScoringFailed("judge down", "http_503")
        if item.text == "garbage":
            raise InvalidAnswer("no number")
        return context.progress


class Crowd(GroupReward):
    """The number of answers in the group."""

    name, range = "crowd", (0.0, 100.0)

    def score_group(self, items):
        return [float(len(items))] * len(items)


def tiny_language_model():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config), tokenizer


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*is deprecated:FutureWarning")  # trl 1.16's own
def test_trl_trainer_learns_from_an_adapted_reward(tmp_path):
    model, tokenizer = tiny_language_model()
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[as_trl(Threes(), answer="solution")],
        train_dataset=Dataset.from_dict({"prompt": ["how many"] * 32, "solution": ["3"] * 32}),
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=64,
            num_generations=32,
            max_completion_length=6,
            max_steps=12,
            learning_rate=3e-2,
            beta=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            bf16=False,
            activation_checkpointing=False,
        ),
    )
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert len(rewards) == 12 and rewards[0] < 0.3
    assert sum(rewards[-3:]) / 3 > 0.6, rewards
    logged = trainer.state.log_history[0]
    assert logged["rewards/threes/mean"] == pytest.approx(logged["reward"])
    assert any(key.endswith("reward/threes") for key in logged), sorted(logged)


def test_trl_logs_the_first_reason_of_each_kind_of_failure(caplog):
    reward = as_trl(Scripted())
    for _ in range(2):
        assert reward(prompts=["a", "b"], completions=["broken", "broken"]) == [None, None]
    (record,) = caplog.records
    assert record.getMessage() == "an answer could not be scored (http_503): scripted failed: judge down"


@pytest.mark.parametrize(
    ("completions", "answers", "message"),
    [(["3", "3"], ["3"], "answer has 1 values, and there are 2"), (["3"], ["3", "3"], "completions has 1 values")],
)
def test_columns_that_are_not_as_long_as_the_prompts_are_named(completions, answers, message):
    with pytest.raises(RewardError, match=message):
        as_trl(Scripted())(prompts=["a", "b"], completions=completions, answer=answers)


def test_a_column_of_answers_that_the_data_set_lacks_is_named():
    with pytest.raises(RewardError, match=r"as_trl\(answer='solution'\): the data set has no such column; it has text"):
        as_trl(Threes(), answer="solution")(prompts=["a"], completions=["3"], text=["3"])


def test_trl_gets_none_for_unscored_and_the_minimum_for_invalid_rows():
    logged = {}
    reward = as_trl(Scripted())
    totals = reward(
        prompts=["a", "a", "b"],
        completions=["broken", "garbage", "fine"],
        completion_ids=[[1], [1, 2], [1]],
        trainer_state=SimpleNamespace(global_step=3, max_steps=4),
        log_metric=logged.__setitem__,
        log_extra=print,
    )
    assert totals == [None, 0.0, 0.75] and reward.__name__ == "scripted"
    assert logged == {"reward/scripted": 0.375, "status/scripted/error": 1.0, "status/scripted/invalid": 1.0}


def test_trl_logs_nothing_of_a_reward_that_applies_to_no_answer_of_a_batch():
    class Elsewhere(Reward):
        name, range = "elsewhere", (0.0, 1.0)

        def score_one(self, item):
            raise NotApplicable("for other answers")

    logged = {}
    reward = as_trl(RewardSuite([(Scripted(), 1.0), (Elsewhere(), 0.0)]))
    assert reward(prompts=["a"], completions=["fine"], log_metric=logged.__setitem__) == [0.0]
    assert logged == {"reward/scripted": 0.0}


def test_trl_conversations_and_columns_reach_the_reward():
    seen = []

    class Looking(Reward):
        name, range = "looking", (0.0, 1.0)

        def score_one(self, item):
            seen.append(item)
            return 1.0

    prompt = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "how many?"}]}]
    answers = [[{"role": "assistant", "content": "3"}], [{"role": "assistant", "content": "4"}]]
    suite = RewardSuite([(Looking(), 2.0), (Crowd(), 1.0)])
    totals = as_trl(suite, "solution")(
        prompts=[prompt, prompt], completions=answers, solution=["3", "3"], completion_ids=[[7, 8], [7]]
    )
    assert totals == [4.0, 4.0]  # twice 1, and a group of two
    assert [(item.prompt, item.text, item.references, item.metadata) for item in seen] == [
        ("how many?", "3", {"solution": "3", "answer": "3"}, {"tokens": [7, 8]}),
        ("how many?", "4", {"solution": "3", "answer": "3"}, {"tokens": [7]}),
    ]


def test_trl_stops_if_too_few_answers_are_scored():
    reward = as_trl(RewardSuite([(Scripted(), 1.0)], min_valid_share=0.5))
    with pytest.raises(TooFewScored, match="http_503"):
        reward(prompts=["a", "a", "a"], completions=["broken", "broken", "fine"])


def test_verl_gets_score_and_parts_or_an_exception():
    compute_score = as_verl(RewardSuite([(Threes(), 1.0), (Scripted(), 0.5)]))
    scored = compute_score("numbers", "3 3 4 5", "3", {"index": 7, "question": "how many"})
    assert scored == {"score": 0.5, "threes": 0.5, "scripted": 0.0, "invalid": 0.0}
    assert (
        compute_score(data_source="numbers", solution_str="garbage", ground_truth="3", extra_info=None)["invalid"]
        == 1.0
    )
    with pytest.raises(ScoringFailed, match=r"numbers: cannot be scored: .*judge down"):
        compute_score("numbers", "broken", "3")
    assert all(math.isfinite(value) for value in scored.values())


def test_verl_rejects_group_rewards_and_takes_arrays_as_lists():
    for suite in (RewardSuite([(Crowd(), 1.0)]), RewardSuite([(Threes(), 1.0)], aggregation="gdpo")):
        with pytest.raises(RewardError, match="verl scores answers one by one"):
            as_verl(suite)
    seen = []

    class Looking(Reward):
        name, range = "looking", (0.0, 1.0)

        def score_one(self, item):
            seen.append(item.references)
            return 1.0

    box = np.array([np.array([1, 2, 3, 4])], dtype=object)
    as_verl(Looking())("boxes", "[]", box, {"choices": np.array(["a", "b"])})
    assert seen == [{"choices": ["a", "b"], "answer": [[1, 2, 3, 4]]}]


@pytest.mark.parametrize("nothing", [None, [], [{"role": "assistant", "content": None}], [{"role": "assistant"}]])
def test_trl_completions_without_text_are_empty_answers(nothing):
    assert as_trl(Threes(), "solution")(prompts=["a"], completions=[nothing], solution=["3"]) == [0.0]


def test_renamed_methods_warn_and_give_equal_results():
    with pytest.warns(FutureWarning, match=r"the method as_trl is now the function mmrl\.rewards\.as_trl"):
        old = Scripted().as_trl()
    arguments = {"prompts": ["a"], "completions": ["3"]}
    assert old(**arguments) == as_trl(Scripted())(**arguments)
