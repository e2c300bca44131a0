"""VQAScore: asking a vision-language model whether a picture shows what the prompt says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError, ScoringFailed
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.model_files import VOCABULARIES, find_file, load_part, load_pretrained, torch_dtype
from mmrl.rewards.models.model_reward import ModelReward

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

QUESTION = 'Does this figure show "{text}"? Please answer yes or no.'
LONGEST_TEXT = 20_000
"""Characters of a prompt that is asked about. A longer one is not cut: that would be another question."""


class VQAScore(ModelReward):
    """The probability, by any vision-language model, of answering Yes to whether a picture shows its prompt.

    In [0, 1]. Any model of transformers that reads a picture and writes text; the picture and the question are one
    message of the user where the model has a chat template, and otherwise its processor is given both as they are.
    """

    name, range = "vqa_score", (0.0, 1.0)
    source = "VQAScore, arXiv:2404.01291"
    licence = "Apache-2.0 (the default model)"
    batch_size = 8

    def __init__(
        self,
        model: str = "Qwen/Qwen2.5-VL-7B-Instruct",
        question: str = QUESTION,
        answer: str = "Yes",
        revision: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
    ) -> None:
        """`question` holds {text}, where the prompt goes; for a model without a chat template also what else it is
        used to, such as "USER: <image>...". `answer`: one token. `dtype`: "auto" is what the weights are stored in.
        """
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if question.count("{text}") != 1:
            raise RewardError(f"question is {question!r}; it must hold {{text}} once, where the prompt goes")
        network, files = load_pretrained(
            AutoModelForImageTextToText, model, revision, "auto" if dtype == "auto" else torch_dtype(dtype)
        )
        super().__init__(network, files, device)
        self._network = network
        find_file(model, VOCABULARIES, revision)  # without it transformers goes on with a tokenizer of few tokens
        self._processor = load_part(AutoProcessor, model, revision)
        tokenizer = getattr(self._processor, "tokenizer", None)
        if tokenizer is None:
            kind = type(self._processor).__name__
            raise RewardError(f"{model}: its processor is a {kind}, which reads no text; due is one of both")
        # The answer follows the last token of every row, unless a decoder of its own writes it.
        tokenizer.padding_side = "right" if network.config.is_encoder_decoder else "left"
        added = tokenizer.added_tokens_decoder.values()
        self._control = [token.content for token in added if token.special and token.content.strip()]
        self._question, self._answer = question, _one_token(tokenizer, answer)

    def score_pictures(self, pictures: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        """[B] in [0, 1]."""
        questions = [self._ask(item.prompt) for item in items]
        inputs = self._inputs(pictures, questions).to(self.device)
        inputs = inputs.to(self._network.dtype)  # pixels alone: token numbers stay whole
        written = self._network.generate(
            **inputs, max_new_tokens=1, do_sample=False, num_beams=1, output_logits=True, return_dict_in_generate=True
        )
        probabilities: Tensor = written.logits[0].float().softmax(-1)[:, self._answer]
        return probabilities

    def _ask(self, prompt: str) -> str:
        if len(prompt) > LONGEST_TEXT:
            raise ScoringFailed(
                f"the prompt has {len(prompt)} characters; at most {LONGEST_TEXT} are asked", "too_long"
            )
        if control := [token for token in self._control if token in prompt]:
            raise ScoringFailed(f"the prompt holds {control[0]}, which the model takes for control", "control_token")
        return self._question.replace("{text}", prompt)

    def _inputs(self, pictures: Sequence[Image.Image], questions: Sequence[str]) -> Any:
        if self._processor.chat_template is None:
            return self._processor(
                images=[[picture] for picture in pictures], text=list(questions), padding=True, return_tensors="pt"
            )
        messages = [
            [{"role": "user", "content": [{"type": "image", "image": picture}, {"type": "text", "text": question}]}]
            for picture, question in zip(pictures, questions, strict=True)
        ]
        return self._processor.apply_chat_template(
            messages,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs={"padding": True},
        )


def _one_token(tokenizer: Any, answer: str) -> int:
    tokens = tokenizer(answer, add_special_tokens=False)["input_ids"]
    if len(tokens) != 1:
        raise RewardError(f"answer is {answer!r}, {len(tokens)} tokens of this model; it must be one")
    return int(tokens[0])
