"""ROUGE and BLEU against a plain table and torchmetrics' parts; BMAS against loops, on a tiny encoder."""

import math
import random
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from mmrl.rewards import RewardError, Status, load
from mmrl.rewards.rules.text_similarity import BLEU, BMAS, Rouge, bleu, bmas, rouge_f1, rouge_words

from .single_answer import ask, outcome, value

WORDS = ["a", "red", "circle", "stands", "left", "of", "the", "blue", "square"]


def is_subsequence(short, long):
    rest = iter(long)
    return all(word in rest for word in short)


def rouge_by_search(answer, truth, variant):
    """F1 of precision and recall, by trying all subsequences, or by crossing out pairs one by one."""
    if variant == "L":
        shared = max(n for n in range(len(answer) + 1) for s in combinations(answer, n) if is_subsequence(s, truth))
        sizes = len(answer), len(truth)
    else:
        n = int(variant)
        left, right = ([tuple(t[k : k + n]) for k in range(len(t) - n + 1)] for t in (answer, truth))
        sizes, remaining = (len(left), len(right)), list(right)
        shared = 0
        for gram in left:
            if gram in remaining:
                remaining.remove(gram)
                shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / sizes[0], shared / sizes[1]
    return 2 * precision * recall / (precision + recall)


@pytest.mark.parametrize("variant", ["1", "2", "L"])
def test_500_random_texts_equal_an_exhaustive_search(variant):
    rng = random.Random(0)
    for _ in range(500):
        answer, truth = (rng.choices("abcd", k=rng.randint(2, 7)) for _ in range(2))
        assert value(Rouge(variant), " ".join(answer), " ".join(truth)) == pytest.approx(
            rouge_by_search(answer, truth, variant)
        )


@pytest.mark.integration
def test_precision_recall_and_f1_equal_torchmetrics():
    from torchmetrics.functional.text.rouge import _rouge_l_score, _rouge_n_score  # the whole asks for nltk's data

    rng = random.Random(1)
    for _ in range(500):
        answer, truth = (rng.choices(WORDS, k=rng.randint(2, 12)) for _ in range(2))
        for variant, theirs in (("1", 1), ("2", 2)):
            expected = float(_rouge_n_score(answer, truth, theirs)["fmeasure"])
            assert rouge_f1(answer, truth, variant) == pytest.approx(expected)
        assert rouge_f1(answer, truth) == pytest.approx(float(_rouge_l_score(answer, truth)["fmeasure"]))


def test_words_are_letters_and_digits_of_any_script():
    assert rouge_words("A red-circle, (3) x_1!") == ["a", "red", "circle", "3", "x", "1"]
    assert rouge_words("\u5706\u5f62 3") == ["\u5706", "\u5f62", "3"]
    assert value(Rouge(), "\u5706", "\u5706\u5f62") == pytest.approx(2 / 3)
    assert rouge_words("\u041a\u0440\u0443\u0433") == ["\u043a\u0440\u0443\u0433"]


def test_rouge_2_and_l_depend_on_word_order():
    assert value(Rouge("1"), "b a", "a b") == 1 and value(Rouge("2"), "b a", "a b") == 0
    assert value(Rouge("L"), "b a", "a b") == 0.5 and value(Rouge("L"), "A, b.", "a b") == 1
    assert value(Rouge("2"), "a", "a") == 1 and value(Rouge("2"), "b", "a") == 0


def test_empty_answers_score_0_and_empty_references_fail():
    for variant in ("1", "2", "L"):
        assert value(Rouge(variant), "", "a") == value(Rouge(variant), "?!", "a") == 0
        for wrong in ("", "?!", [], ["a", ""], 3, "a" * 100_001):
            assert outcome(Rouge(variant), "a", wrong)[1] is Status.ERROR
    assert outcome(Rouge(), "a" * 100_001, "a") == (0, Status.INVALID)


def test_best_of_several_references_counts():
    assert value(Rouge(), "a b", ["c d", "a b"]) == 1 and value(Rouge(), "a b", ["c d", "a c"]) == 0.5


def test_unknown_variants_are_rejected():
    with pytest.raises(RewardError, match="rouge: variant is '3'; expected one of 1, 2, L"):
        Rouge("3")


def test_bleu_equals_hand_values():
    """Precisions 5/6, (3 + 1)/(5 + 1), (1 + 1)/(4 + 1) and (0 + 1)/(3 + 1), without a penalty; then half the words."""
    truth = "the cat sat on the mat"
    assert value(BLEU(), "the cat lay on the mat", truth) == pytest.approx((5 / 6 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25)
    assert value(BLEU(), "the cat sat", truth) == pytest.approx(math.exp(1 - 6 / 3))
    assert value(BLEU(1), "mat the on sat cat the", truth) < 1
    assert value(BLEU(2), "the cat the", truth) == pytest.approx((3 / 3 * (1 + 1) / (2 + 1)) ** 0.5 * math.exp(-1))
    assert value(BLEU(), truth, truth) == value(BLEU(), "cat", ["dog", "cat"]) == 1
    assert value(BLEU(), "dog", truth) == value(BLEU(), "", truth) == 0
    with pytest.raises(RewardError, match="bleu: order is 0"):
        BLEU(0)


@pytest.mark.integration
def test_bleu_equals_torchmetrics():
    from torchmetrics.functional.text import bleu_score

    rng, compared = random.Random(2), 0
    for _ in range(300):
        answer, truth = (rng.choices(WORDS, k=rng.randint(4, 12)) for _ in range(2))
        if answer != truth and set(answer) & set(truth):
            for order in (1, 2, 4):
                expected = float(bleu_score([" ".join(answer)], [[" ".join(truth)]], n_gram=order, smooth=order > 1))
                if expected:  # torchmetrics gives 0 if no run of a length is shared, smoothed or not
                    assert bleu(answer, truth, order) == pytest.approx(expected, rel=1e-5)
                    compared += 1
    assert compared > 100


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A folder with a BERT of two layers and a tokenizer of WORDS."""
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = {word: n for n, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        initializer_range=1.0,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def encoder_reward(encoder):
    return BMAS(encoder)


def bmas_by_loops(first, second):
    def cosine(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)

    there = sum(max(cosine(a, b) for b in second) for a in first) / len(first)
    back = sum(max(cosine(a, b) for a in first) for b in second) / len(second)
    return (there + back) / 2


@pytest.mark.integration
def test_bmas_equals_loops_on_500_random_embeddings():
    rng = random.Random(0)
    for _ in range(500):
        first, second = (torch.randn(rng.randint(1, 5), 4, dtype=torch.float64) for _ in range(2))
        assert bmas(first, second) == pytest.approx(bmas_by_loops(first.tolist(), second.tolist()))
        assert bmas(first, second) == pytest.approx(bmas(second, first))


def test_bmas_uses_last_hidden_states_without_special_tokens(encoder):
    reward = load("bmas", model=encoder)
    network = BertModel.from_pretrained(encoder).eval()
    ids = {text: [4 + WORDS.index(word) for word in text.split()] for text in ("a red circle", "the blue square of a")}
    with torch.no_grad():
        states = [network(torch.tensor([[2, *row, 3]])).last_hidden_state[0, 1:-1].tolist() for row in ids.values()]
    texts = list(ids)
    # In one batch with a longer text: padding changes nothing.
    batch = [ask(texts[0], texts[1]), ask("a a a a a a a a", texts[1]), ask(texts[1], [texts[0], texts[1]])]
    scores = reward.score(batch).values["bmas"]
    assert scores[0] == pytest.approx(bmas_by_loops(*states), abs=1e-5) and scores[0] < 0.99
    assert scores[2] == 1
    assert [file.path for file in reward.spec.weights] and len(reward.spec.weights[0].sha256) == 64


def test_bmas_of_input_embeddings_ignores_order_below_perfect(encoder):
    contextual, table = BMAS(encoder), BMAS(encoder, embeddings="input")
    assert value(table, "a red", "a red") == value(contextual, "a red", "a red") == 1
    assert 0.9999 < value(table, "red a", "a red") < 1
    assert value(contextual, "red a", "a red") < 0.9999
    assert value(table, "a a red", "a red") < 1  # though every token has its like


def test_bmas_truncates_no_text(encoder):
    reward = BMAS(encoder)
    assert value(reward, "a " * 14, "a " * 14) == 1
    assert outcome(reward, "a " * 15, "a") == (-1, Status.INVALID)  # 17 with the special tokens, of 16
    assert outcome(reward, "", "a") == (-1, Status.INVALID)
    assert outcome(reward, "a", "a " * 15)[1] is outcome(reward, "a", "")[1] is Status.ERROR
    mixed = reward.score([ask("a", "a"), ask("", "a"), ask("a", "a " * 15), ask("a", 3)])
    assert mixed.status["bmas"] == [Status.OK, Status.INVALID, Status.ERROR, Status.ERROR]


@pytest.mark.integration
@given(st.text(max_size=40), st.lists(st.sampled_from([*WORDS, "[CLS]", "[SEP]", "[PAD]", "?"]), max_size=14))
def test_bmas_scores_or_rejects_any_answer(encoder_reward, text, words):
    truth = "a red circle"
    stuffed = " ".join(words)
    output = encoder_reward.score([ask(answer, truth) for answer in (text, stuffed, f"{truth} {stuffed} x", truth)])
    values, status = output.values["bmas"], output.status["bmas"]
    assert set(status) <= {Status.OK, Status.INVALID} and (abs(values) <= 1).all()
    assert (values[1] == 1) == (words == truth.split()) and values[2] < 1 and values[3] == 1


def test_bmas_rejects_models_that_are_no_encoder(encoder, tmp_path):
    with pytest.raises(RewardError):
        BMAS(str(tmp_path))
    with pytest.raises(RewardError, match="embeddings is 'first'"):
        BMAS(encoder, embeddings="first")


def test_bmas_with_a_threshold_is_right_or_wrong(encoder):
    graded = value(BMAS(encoder), "red a", "a red")
    assert [value(BMAS(encoder, threshold=t), "red a", "a red") for t in (graded - 1e-3, graded + 1e-5)] == [1, 0]
    assert value(BMAS(encoder, threshold=1.0), "a red", "a red") == 1
    with pytest.raises(RewardError, match="threshold is 2; it is a similarity"):
        BMAS(encoder, threshold=2)
