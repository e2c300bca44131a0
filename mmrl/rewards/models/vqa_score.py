"""VQAScore: the probability that a vision-language model answers Yes to "does the image show the prompt?"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.rewards.core.reward_errors import RewardError
from mmrl.rewards.core.reward_io import RewardInput
from mmrl.rewards.models.model_files import VOCABULARIES, find_file, load_component, load_pretrained, torch_dtype
from mmrl.rewards.models.model_reward import ModelReward
from mmrl.rewards.models.prompt_checks import check_prompt, control_tokens

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

QUESTION = 'Does this figure show "{text}"? Please answer yes or no.'


class VQAScore(ModelReward):
    """The probability that a vision-language model answers Yes to the question if an image shows its prompt.

    In [0, 1]. Any image-text-to-text model of transformers; image and question are one user message if the model has a
    chat template, and are otherwise passed to its processor unchanged.
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
        """`question` has a slot {text} for the prompt; for a model without a chat template it also has the model's
        format, such as "USER: <image>...". `answer`: one token. `dtype`: "auto" is that of the stored weights.
        """
        from transformers import AutoModelForImageTextToText, AutoProcessor

        if question.count("{text}") != 1:
            raise RewardError(f"question is {question!r}; it must have the slot {{text}} once, for the prompt")
        network, files = load_pretrained(
            AutoModelForImageTextToText, model, revision, "auto" if dtype == "auto" else torch_dtype(dtype)
        )
        super().__init__(network, files, device)
        self._network = network
        find_file(model, VOCABULARIES, revision)  # without it transformers silently builds a tokenizer of few tokens
        self._processor = load_component(AutoProcessor, model, revision)
        tokenizer = getattr(self._processor, "tokenizer", None)
        if tokenizer is None:
            kind = type(self._processor).__name__
            raise RewardError(f"{model}: its processor is a {kind}, which takes no text; expected images and text")
        # The answer follows the last token of every row, unless a separate decoder generates it.
        tokenizer.padding_side = "right" if network.config.is_encoder_decoder else "left"
        self._control = control_tokens(tokenizer)
        self._question, self._answer = question, _one_token(tokenizer, answer)

    def score_images(self, images: Sequence[Image.Image], items: Sequence[RewardInput]) -> Tensor:
        questions = [self._question_of(item.prompt) for item in items]
        inputs = self._inputs(images, questions).to(self.device)
        inputs = inputs.to(self._network.dtype)  # converts pixels only: token ids are integers
        generated = self._network.generate(
            **inputs, max_new_tokens=1, do_sample=False, num_beams=1, output_logits=True, return_dict_in_generate=True
        )
        probabilities: Tensor = generated.logits[0].float().softmax(-1)[:, self._answer]
        return probabilities

    def _question_of(self, prompt: str) -> str:
        return self._question.replace("{text}", check_prompt(prompt, self._control))

    def _inputs(self, images: Sequence[Image.Image], questions: Sequence[str]) -> Any:
        if self._processor.chat_template is None:
            return self._processor(
                images=[[image] for image in images], text=list(questions), padding=True, return_tensors="pt"
            )
        messages = [
            [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": question}]}]
            for image, question in zip(images, questions, strict=True)
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
