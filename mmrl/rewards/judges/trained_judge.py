"""`trained_judge`: a vision-language model that was trained to judge pairs, in the process of the run.

The model was trained on pairs in both orders (`mmrl data judge`, docs/tasks/judging.md); it thinks and ends with a
verdict. A server may hold it as well: `mmrl rewards serve trained_judge`, or `judge_pairs` with an exported model.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, get_args

from PIL import Image

from mmrl.data.judged_pairs import QUESTION, pair_text
from mmrl.rewards.core.image_input import answer_image
from mmrl.rewards.core.reward import PairReward, Scored
from mmrl.rewards.core.reward_errors import FAULTS, InvalidAnswer, RewardError, ScoringFailed, attempt
from mmrl.rewards.core.reward_io import RewardInput, WeightFile
from mmrl.rewards.models.model_files import (
    VOCABULARIES,
    ResolvedFile,
    find_file,
    load_component,
    load_pretrained,
    torch_device,
    torch_dtype,
)
from mmrl.rewards.rules.verdicts import VERDICTS, read_verdict

Orders = Literal["mean", "agree"]
CHECKPOINTS = "checkpoints"
PEFT_CONFIG = "adapter_config.json"
CONTROL = ("<|", "|>", "</think>", "<think>")
"""Texts in an answer that could end it or stand for the judge's own words; an answer with one of them is malformed."""


class TrainedJudge(PairReward):
    """Mean win rate of an answer over the others to its prompt, by verdicts of a model after its own thoughts.

    In [0, 1]; the only answer in a group is not scored. Each pair is shown in both orders. With `orders: mean` the two
    verdicts are averaged; with `agree` a pair counts only where they agree, and an answer without such a pair gets 0.5.
    A verdict that cannot be read is left out. `trained_judge_agreement`, a further score, is the share of an answer's
    pairs on which both orders agree: where it is low, the judge prefers places.

        load("trained_judge", model="runs/my-judge/seed-0")
    """

    name = "trained_judge"
    source = "generative reward models in both orders, arXiv:2505.03318"
    licence = "that of the model"

    def __init__(
        self,
        model: str,
        question: str = QUESTION,
        orders: Orders = "mean",
        max_new_tokens: int = 512,
        batch: int = 32,
        adapter_base: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """
        Args:
            model: the folder of a run, of one of its checkpoints, of an export, or a hub id.
            question: the question to the judge, as it was in training; {prompt} stands for the prompt of the answers.
            orders: what two verdicts that disagree are worth: `mean` or `agree`.
            max_new_tokens: of thoughts and verdict; a text that is cut off has no verdict.
            batch: questions that are answered at once.
            adapter_base: the base of a folder of adapters; unset: the one that the folder names.
            device: where it computes; auto is CUDA if available.
            dtype: of the weights; auto is that of the stored ones.
        """
        if question.count("{prompt}") != 1:
            raise RewardError(f"question is {question!r}; it must have the slot {{prompt}} once")
        if orders not in get_args(Orders):
            raise RewardError(f"orders is {orders!r}; it must be one of {', '.join(get_args(Orders))}")
        if batch < 1 or max_new_tokens < 1:
            raise RewardError(f"batch ({batch}) and max_new_tokens ({max_new_tokens}) must be at least 1")
        self._question, self._orders, self._most, self._batch = question, orders, max_new_tokens, batch
        network, self._processor, self._files = load_judge(model, adapter_base, dtype)
        self._network: Any = network.to(torch_device(device)).eval().requires_grad_(False)

    def weight_files(self) -> tuple[WeightFile, ...]:
        return tuple(found.weight_file() for found in self._files)

    def compare(self, first: RewardInput, second: RewardInput) -> float:
        """Return 1 if the verdict is for the first answer, else 0."""
        verdict = self._verdicts([(first.prompt, _view(first), _view(second))])[0]
        if isinstance(verdict, Exception):
            raise verdict
        return float(verdict == VERDICTS[0])

    def score_group(self, items: Sequence[RewardInput]) -> Sequence[Scored]:
        """Ask for all pairs of a group in both orders, and return the win rates."""
        if len(items) == 1:
            return [ScoringFailed(f"{self.name} compares answers, but this group has only one", "alone")]
        views = [attempt(_view, item, errors=FAULTS) for item in items]
        valid = [row for row, view in enumerate(views) if not isinstance(view, Exception)]
        pairs = list(combinations(valid, 2))
        questions = [(items[i].prompt, views[i], views[j]) for pair in pairs for i, j in (pair, pair[::-1])]
        replies = self._verdicts(questions)
        wins: dict[int, list[float]] = defaultdict(list)
        agreed: dict[int, list[float]] = defaultdict(list)
        for (i, j), there, back in zip(pairs, replies[::2], replies[1::2], strict=True):
            if isinstance(there, Exception) or isinstance(back, Exception):
                continue
            agree = there != back  # the letters are of places, and the places were exchanged
            for row, letter in ((i, VERDICTS[0]), (j, VERDICTS[1])):
                agreed[row].append(float(agree))
                if agree or self._orders == "mean":
                    wins[row].append(float(there == letter) if agree else 0.5)
        for row in valid:  # a malformed answer loses against any other
            wins[row] += [1.0] * sum(isinstance(view, InvalidAnswer) for view in views)
        return [self._score(views[row], wins[row], agreed[row]) for row in range(len(items))]

    def _score(self, view: Any, wins: Sequence[float], agreed: Sequence[float]) -> Scored:
        if isinstance(view, Exception):
            return view
        if not agreed and not wins:
            return ScoringFailed(f"{self.name} gave no verdict that can be read on this answer", "unparseable")
        rate = sum(wins) / len(wins) if wins else 0.5
        return {self.name: rate, f"{self.name}_agreement": sum(agreed) / len(agreed) if agreed else 1.0}

    def _verdicts(self, questions: Sequence[tuple[str, Any, Any]]) -> list[str | Exception]:
        """Return the letter of each verdict on (prompt, first answer, second answer), or why there is none."""
        import torch

        found: list[str | Exception] = []
        with torch.inference_mode():
            for start in range(0, len(questions), self._batch):
                texts = self._written(questions[start : start + self._batch])
                found += [attempt(read_verdict, text, errors=(InvalidAnswer,)) for text in texts]
        return [ScoringFailed(str(each), "unparseable") if isinstance(each, Exception) else each for each in found]

    def _written(self, questions: Sequence[tuple[str, Any, Any]]) -> list[str]:
        """Return what the judge writes to each question, the likeliest token each time."""
        messages = [[{"role": "user", "content": _content(self._question, *each)}] for each in questions]
        inputs = self._processor.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        ).to(self._network.device)
        inputs = inputs.to(self._network.dtype)  # converts pixels only: token ids are integers
        ids = self._network.generate(**inputs, max_new_tokens=self._most, do_sample=False, num_beams=1)
        new = ids[:, inputs["input_ids"].shape[1] :]
        texts: list[str] = self._processor.tokenizer.batch_decode(new, skip_special_tokens=True)
        return texts


def load_judge(model: str, adapter_base: str | None, dtype: str) -> tuple[Any, Any, tuple[ResolvedFile, ...]]:
    """Return the network, its processor and its weight files; adapters are merged into their base.

    Raises:
        RewardError: there is no such model, or it reads no pictures.
    """
    from transformers import AutoModelForImageTextToText, AutoProcessor

    folder = checkpoint_folder(model)
    adapters = Path(folder, PEFT_CONFIG)
    base = folder
    if adapters.is_file():
        base = adapter_base or str(json.loads(adapters.read_text(encoding="utf-8"))["base_model_name_or_path"])
    kind: Any = "auto" if dtype == "auto" else torch_dtype(dtype)
    network, files = load_pretrained(AutoModelForImageTextToText, base, None, kind)
    if base != folder:
        from peft import PeftModel

        network = PeftModel.from_pretrained(network, folder).merge_and_unload()
        files = (*files, find_file(folder, "adapter_model.safetensors"))
    find_file(base, VOCABULARIES)  # without it transformers silently builds a tokenizer of few tokens
    processor = load_component(AutoProcessor, base, None)
    if getattr(processor, "tokenizer", None) is None or processor.chat_template is None:
        raise RewardError(f"{model}: a judge needs a processor with a tokenizer and a chat template")
    processor.tokenizer.padding_side = "left"
    return network, processor, files


def checkpoint_folder(model: str) -> str:
    """Return the folder of the last checkpoint if `model` is the folder of a run, else `model`."""
    index = Path(model).expanduser() / CHECKPOINTS / "index.json"
    if not index.is_file():
        return model
    last = json.loads(index.read_text(encoding="utf-8")).get("last")
    if not isinstance(last, str):
        raise RewardError(f"{model}: the run has no checkpoint yet")
    return str(index.parent / last)


def _view(item: RewardInput) -> Image.Image | str:
    """Return the picture of an answer, or else its text.

    Raises:
        InvalidAnswer: the text is empty, or could be taken for the judge's own words.
        ScoringFailed: there is neither.
    """
    if item.image is not None:
        return answer_image(item.image)
    if item.text is None:
        raise ScoringFailed("a judge needs pictures or texts", "missing")
    if not item.text.strip():
        raise InvalidAnswer("the answer is empty")
    if control := [each for each in CONTROL if each in item.text]:
        raise InvalidAnswer(f"the answer has {control[0]}, which may end it for the judge")
    return item.text


def _content(question: str, prompt: str, first: Image.Image | str, second: Image.Image | str) -> list[dict[str, Any]]:
    """Return the parts of a message, in the form of `mmrl.data.judged_pairs`."""
    pictures = [each for each in (first, second) if not isinstance(each, str)]
    texts = [each for each in (first, second) if isinstance(each, str)]
    if pictures and texts:
        raise ScoringFailed("one answer is a picture and the other a text", "mixed")
    parts: list[dict[str, Any]] = [{"type": "image", "image": each} for each in pictures]
    return [*parts, {"type": "text", "text": pair_text(question, prompt, texts)}]
