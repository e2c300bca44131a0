"""Rewards that compare a text with a true one: edit distances (OCR), shared words (ROUGE, BLEU), embeddings (BMAS)."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from mmrl.rewards.core.reward import BatchReward, Reward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput, WeightFile, clamp_below_one
from mmrl.rewards.parsing.final_answer import AnswerFormat, answer_text, resolve_form
from mmrl.rewards.parsing.lenient_forms import Reading, check_reading, lenient_quotation, resolve_reading
from mmrl.rewards.rules.lengths import split_words

if TYPE_CHECKING:
    from torch import Tensor

MAX_CHARACTERS = 100_000
"""The number of characters above which a text is not compared: the time of edit distances is quadratic."""

UnicodeForm: TypeAlias = Literal["NFC", "NFKC"]
"""NFC unifies canonical equivalents; NFKC also compatible characters, such as full-width letters."""


class _OCRReward(Reward):
    """The base class of OCR rewards: the normalisation of texts before they are compared."""

    needs, range = ("text", "references.answer"), (0.0, 1.0)

    def __init__(
        self,
        fold_case: bool = False,
        fold_space: bool = False,
        unicode: UnicodeForm = "NFC",
        form: AnswerFormat = "auto",
        reading: Reading | None = None,
    ) -> None:
        if unicode not in get_args(UnicodeForm):
            raise RewardError(
                f"{self.name}: unicode is {unicode!r}; expected one of {', '.join(get_args(UnicodeForm))}"
            )
        self.fold_case, self.fold_space, self.unicode, self.form = fold_case, fold_space, unicode, form
        check_reading(self.name, reading)
        self.reading = reading

    def texts(self, item: RewardInput) -> tuple[str, str]:
        """Return the answered and the true text, normalised."""
        truth: Any = item.references["answer"]
        if isinstance(truth, bool) or not isinstance(truth, str | int | float) or len(str(truth)) > MAX_CHARACTERS:
            expected = f"expected a text of at most {MAX_CHARACTERS} characters"
            raise ScoringFailed(f"references.answer is {truth!r:.60}; {expected}", "reference")
        answer = _answer(item, self.form)
        if resolve_reading(item, self.reading) == "lenient":
            answer = lenient_quotation(answer)
        return self._folded(answer), self._folded(str(truth))

    def _folded(self, text: str) -> str:
        text = unicodedata.normalize(self.unicode, text.strip())
        if self.fold_case:
            text = unicodedata.normalize(self.unicode, text.casefold())
        return " ".join(text.split()) if self.fold_space else text


class OCRNED(_OCRReward):
    """Similarity of the answered and the true text, in [0, 1]: 1 - edit distance / length of the longer.

    White space at the ends and Unicode's canonical equivalents are ignored. Case and white space count unless
    `fold_case` and `fold_space` are set, and look-alikes (Cyrillic А for Latin A) always count unless
    `unicode="NFKC"` folds them. If both texts are empty it is 1.
    """  # noqa: RUF002

    name = "ocr_ned"
    source = "1 − Levenshtein / max(length)"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return 1.0 if read == truth else clamp_below_one(1 - edit_distance(read, truth) / max(len(read), len(truth)))


class OCRCER(_OCRReward):
    """Character error rate, in [0, 1], lower is better: edit distance / length of the truth, at most 1.

    Texts are compared as in `ocr_ned`. If the true text is empty, any answer but an empty one scores 1.
    """

    name = "ocr_cer"
    direction = "lower"
    source = "CER = (substitutions + deletions + insertions) / characters"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read, truth)


class OCRWER(_OCRReward):
    """Word error rate, in [0, 1], lower is better: edits in words / words of the truth, at most 1.

    As `ocr_cer`, of words separated by white space; the kind and amount of white space do not count.
    """

    name = "ocr_wer"
    direction = "lower"
    source = "WER = (substitutions + deletions + insertions) / words"

    def score_one(self, item: RewardInput) -> float:
        read, truth = self.texts(item)
        return error_rate(read.split(), truth.split())


def error_rate(read: Sequence[Hashable], truth: Sequence[Hashable]) -> float:
    """Return the edits per element of the truth, at most 1; if the truth is empty, 1 for any non-empty sequence."""
    return min(1.0, edit_distance(read, truth) / max(len(truth), 1))


def edit_distance(first: Sequence[Hashable], second: Sequence[Hashable]) -> int:
    """Return the Levenshtein distance of two texts, or of two lists of words."""
    from rapidfuzz.distance import Levenshtein

    return int(Levenshtein.distance(first, second))


Variant: TypeAlias = Literal["1", "2", "L"]
Embeddings: TypeAlias = Literal["contextual", "input"]

_SEPARATORS = re.compile(r"[\W_]+")


class Rouge(Reward):
    """ROUGE of the answer and a reference text, in [0, 1], as an F-measure.

    `variant` "1" or "2" counts the words or pairs of words that both have, "L" (the default) the longest common
    subsequence of words. Words are runs of letters and digits, in lower case; single characters in Chinese and
    Japanese. "L" is 1 only for the same words in the same order; "1" ignores the order, and "2" some of it. Texts of a
    single word, which have no pairs, score 1 under "2" if they are the same. With several references (a list) the best
    score counts. rouge-score is not used: it drops all characters outside a-z and 0-9.
    """

    name, needs, range = "rouge", ("text", "references.answer"), (0.0, 1.0)
    source = "ROUGE, aclanthology.org/W04-1013"

    def __init__(self, variant: Variant = "L", form: AnswerFormat = "auto") -> None:
        if variant not in get_args(Variant):
            raise RewardError(f"rouge: variant is {variant!r}; expected one of {', '.join(get_args(Variant))}")
        self.variant, self.form = variant, form

    def score_one(self, item: RewardInput) -> float:
        truths = [rouge_words(truth) for truth in _references(item.references["answer"])]
        if not all(truths):
            raise ScoringFailed("references.answer has no words", "reference")
        words = rouge_words(_answer(item, self.form))
        return max(rouge_f1(words, truth, self.variant) for truth in truths)


class BLEU(Reward):
    """BLEU of the answer and a reference text, in [0, 1]: the shared runs of 1 to `order` words, and a brevity penalty.

    The geometric mean of the precisions of runs of each length, with one added to counts of runs of two words and more,
    as is usual for single texts (Lin and Och, aclanthology.org/C04-1072), times exp(1 - r / c) where the answer has
    c < r words, as many as the reference. Words are those of `rouge`. With several references (a list) the best score
    counts.
    """

    name, needs, range = "bleu", ("text", "references.answer"), (0.0, 1.0)
    source = "BLEU, aclanthology.org/P02-1040"

    def __init__(self, order: int = 4, form: AnswerFormat = "auto") -> None:
        if order < 1:
            raise RewardError(f"bleu: order is {order}; expected 1 or more words")
        self.order, self.form = order, form

    def score_one(self, item: RewardInput) -> float:
        truths = [rouge_words(truth) for truth in _references(item.references["answer"])]
        if not all(truths):
            raise ScoringFailed("references.answer has no words", "reference")
        words = rouge_words(_answer(item, self.form))
        return max(bleu(words, truth, self.order) for truth in truths)


class BMAS(BatchReward):
    """Bidirectional max-average similarity of the tokens of the answer and a reference text, in [-1, 1].

    Mixed-R1's reward for open-ended answers. Every token of one text is compared with all tokens of the other by the
    cosine of their embeddings; the best matches are averaged, in both directions, and so are the two means. Embeddings
    come from `model`, a transformers text encoder (a folder or a hub id): "contextual", its last hidden states, or
    "input", its input embeddings, which ignore the order. Special tokens are excluded. Texts of the same tokens score
    1, others less. Texts past the encoder's maximum length are not truncated: answers are invalid, references fail.
    With several references (a list) the best score counts. With a `threshold` the score is 1 from it on and else 0, as
    that of MediX-R1 (arXiv:2602.23363), whose encoder has one vector for a text and a threshold of 0.8.
    """

    name, needs, range = "bmas", ("text", "references.answer"), (-1.0, 1.0)
    source = "Mixed-R1, arXiv:2505.24164"
    licence = "of the encoder"

    def __init__(
        self,
        model: str,
        embeddings: Embeddings = "contextual",
        device: str = "cpu",
        revision: str | None = None,
        form: AnswerFormat = "auto",
        threshold: float | None = None,
    ) -> None:
        import torch
        from transformers import AutoModel

        from mmrl.rewards.models.model_files import load_pretrained, load_tokenizer

        if embeddings not in get_args(Embeddings):
            raise RewardError(f"bmas: embeddings is {embeddings!r}; expected one of {', '.join(get_args(Embeddings))}")
        if threshold is not None and not -1 <= threshold <= 1:
            raise RewardError(f"bmas: threshold is {threshold}; it is a similarity, in [-1, 1]")
        self.threshold = threshold
        self._tokenizer = load_tokenizer(model, revision)
        network, self._files = load_pretrained(AutoModel, model, revision, torch.float32)
        network = network.get_encoder() if network.config.is_encoder_decoder else network
        self._encoder = network.to(device).eval().requires_grad_(False)
        self.model, self.embeddings, self.device, self.form = model, embeddings, device, form
        self._longest = min(
            self._tokenizer.model_max_length, getattr(self._encoder.config, "max_position_embeddings", 1 << 20)
        )

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._files)

    def score_batch(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        rows = [attempt(self._texts, item, errors=FAULTS) for item in items]
        texts = list(dict.fromkeys(text for row in rows if isinstance(row, tuple) for text in (row[0], *row[1])))
        known = dict(zip(texts, self._embed(texts), strict=True))
        return [row if isinstance(row, Exception) else self._similarity(row[0], row[1], known) for row in rows]

    def _texts(self, item: RewardInput) -> tuple[str, list[str]]:
        answer = _answer(item, self.form)
        if any("\ud800" <= character <= "\udfff" for character in answer):
            raise InvalidAnswer("the answer has a lone surrogate, which no tokenizer accepts")
        return answer, _references(item.references["answer"])

    def _similarity(self, answer: str, truths: Sequence[str], known: Mapping[str, _Embedded]) -> Scored:
        expected = f"expected at least one, and at most {self._longest} with the special ones"
        answered = known[answer]
        scores = []
        for true in (known[truth] for truth in truths):
            if true.vectors is None:
                return ScoringFailed(f"references.answer has {len(true.ids)} tokens; {expected}", "reference")
            if answered.vectors is None:
                return InvalidAnswer(f"the answer has {len(answered.ids)} tokens; {expected}")
            scores.append(1.0 if answered.ids == true.ids else clamp_below_one(bmas(answered.vectors, true.vectors)))
        return max(scores) if self.threshold is None else float(max(scores) >= self.threshold)

    def _embed(self, texts: Sequence[str]) -> list[_Embedded]:
        import torch
        from torch.nn.utils.rnn import pad_sequence

        encoded = [self._tokenizer(text, return_special_tokens_mask=True, verbose=False) for text in texts]
        places = [[at for at, special in enumerate(one["special_tokens_mask"]) if not special] for one in encoded]
        fits = [n for n, one in enumerate(encoded) if places[n] and len(one["input_ids"]) <= self._longest]
        vectors: dict[int, Tensor] = {}
        if fits:
            rows = [torch.tensor(encoded[n]["input_ids"], device=self.device) for n in fits]
            ids = pad_sequence(rows, batch_first=True)
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            with torch.no_grad():
                if self.embeddings == "input":
                    states = self._encoder.get_input_embeddings()(ids)
                else:
                    states = self._encoder(input_ids=ids, attention_mask=mask).last_hidden_state
            vectors = {n: states[row, places[n]] for row, n in enumerate(fits)}
        return [_Embedded([one["input_ids"][at] for at in places[n]], vectors.get(n)) for n, one in enumerate(encoded)]


@dataclass(frozen=True)
class _Embedded:
    """The tokens of a text without the special ones, and their embeddings."""

    ids: list[int]
    vectors: Tensor | None  # [tokens, D]; None if there are no tokens, or more than the encoder accepts


def bmas(
    first: Tensor,  # [N, D] float: the embeddings of one text's tokens
    second: Tensor,  # [M, D]
) -> float:
    """Return the mean over both directions of the mean over tokens of the largest cosine with a token of the other."""
    from torch.nn.functional import normalize

    cosines = normalize(first, dim=-1) @ normalize(second, dim=-1).T
    return float((cosines.amax(1).mean() + cosines.amax(0).mean()) / 2)


def rouge_f1(answer: Sequence[str], truth: Sequence[str], variant: Variant = "L") -> float:
    """Return the ROUGE F-measure of two lists of words, in [0, 1]; 0 if one of them is empty."""
    if list(answer) == list(truth):
        return float(bool(truth))
    if variant == "L":
        from rapidfuzz.distance import LCSseq

        shared, of_answer, of_truth = LCSseq.similarity(answer, truth), len(answer), len(truth)
    else:
        size = int(variant)
        grams = [Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (answer, truth)]
        shared, of_answer, of_truth = (grams[0] & grams[1]).total(), grams[0].total(), grams[1].total()
    return 2 * shared / (of_answer + of_truth) if shared else 0.0


def bleu(answer: Sequence[str], truth: Sequence[str], order: int = 4) -> float:
    """Return the smoothed BLEU of two lists of words, in [0, 1]; 0 if they share no word, 1 only if they are equal."""
    if list(answer) == list(truth):
        return float(bool(truth))
    log_mean = min(0.0, 1 - len(truth) / max(len(answer), 1))
    for size in range(1, order + 1):
        grams = [Counter(zip(*(words[n:] for n in range(size)), strict=False)) for words in (answer, truth)]
        shared, of_answer = (grams[0] & grams[1]).total(), grams[0].total()
        if size == 1 and not shared:
            return 0.0
        log_mean += math.log((shared + (size > 1)) / (of_answer + (size > 1))) / order
    return clamp_below_one(math.exp(log_mean))


def rouge_words(text: str) -> list[str]:
    """Return the runs of letters and digits in lower case; each character of Chinese and Japanese is one word."""
    text = unicodedata.normalize("NFC", text.lower())
    return split_words(_SEPARATORS.sub(" ", text))


def _answer(item: RewardInput, form: AnswerFormat) -> str:
    answer = answer_text(item.text or "", resolve_form(item, form))
    if len(answer) > MAX_CHARACTERS:
        raise InvalidAnswer(f"the answer has {len(answer)} characters; at most {MAX_CHARACTERS} are compared")
    return answer


def _references(answer: Any) -> list[str]:
    truths = list(answer) if isinstance(answer, list | tuple) else [answer]
    if not truths or not all(isinstance(truth, str) and 0 < len(truth.strip()) <= MAX_CHARACTERS for truth in truths):
        expected = f"expected a text of 1 to {MAX_CHARACTERS} characters, or a list of such texts"
        raise ScoringFailed(f"references.answer is {answer!r:.60}; {expected}", "reference")
    return [truth.strip() for truth in truths]
