"""`ImageTokenPolicy`: autoregressive image generators as policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig

from mmrl.config.policy import IMAGE_TOKEN_MODELS, ImageTokenConfig
from mmrl.config.sampling import ImageTokenSamplingConfig
from mmrl.data.media.decode import load_image
from mmrl.data.sample import Sample
from mmrl.errors import ConfigError, DataError
from mmrl.finetuning.trainable import Trainable
from mmrl.finetuning.transformers_modules import TransformersFull, TransformersLora, select_layers
from mmrl.generation.image_tokens.forward import PrefixState, forward_images, forward_packed, prefill_prompts
from mmrl.generation.image_tokens.image_token_model import ImageTokenModel, TokenPrompt
from mmrl.generation.image_tokens.next_scale_lm import SCALES_FILE
from mmrl.generation.image_tokens.scale_forward import ScaleState, begin_scales, forward_scales
from mmrl.generation.image_tokens.vq_causal_lm import SPEC_FILE
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, TargetText, shared_sampling
from mmrl.tokens import guided_logits, sample_tokens, scored_logits, token_log_probs
from mmrl.tokens.log_probs import TokenScores, grad_hint_at, head_log_probs, uses_fused_head
from mmrl.tokens.token_policy import TokenPolicy

_CLASS_OF = {SPEC_FILE: "vq_causal_lm", SCALES_FILE: "next_scale_lm"}
"""The class that loads a folder with this file."""


@dataclass(frozen=True)
class CodeRecording:
    """The prompts and codes of a rollout, from which it is replayed."""

    prompts: list[TokenPrompt]  # B
    codes: Tensor  # [B, T] int64
    sampling: ImageTokenSamplingConfig

    def select(self, rows: Sequence[int]) -> CodeRecording:
        """Return the recording of these rows, in this order."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.codes.device)
        return CodeRecording([self.prompts[row] for row in rows], self.codes[index], self.sampling)


class ImageTokenPolicy(TokenPolicy):
    """A model that generates images code by code and recomputes the probability of each code.

        policy = ImageTokenPolicy.from_config(ImageTokenConfig(model=folder), ImageTokenSamplingConfig())
        rollout = policy.rollout([RolloutRequest(Sample("0", prompt="a red circle"), n=8, group=0)], seed=0)

    With guidance, codes are sampled from a mixture of two distributions; log-probabilities, ratios, entropies and
    gradients are those of the mixture, at the sampling temperature, and gradients reach both rows.
    """

    config: ImageTokenConfig

    def __init__(
        self,
        image_model: ImageTokenModel,
        config: ImageTokenConfig,
        sampling: ImageTokenSamplingConfig,
        trainable: Trainable | None = None,
    ) -> None:
        """`trainable`: that of the network, if another policy answers with it; None: it has none yet."""
        model = image_model.network
        if image_model.scales and config.attention not in ("auto", "sdpa"):
            raise ConfigError(f"policy.attention: {config.attention} cannot read whole scales; choose auto or sdpa")
        super().__init__(model, config, "a whole scale is drawn at once" if image_model.scales else None)
        self.image_model, self.sampling = image_model, sampling
        self.device: torch.device = model.device
        if trainable is not None:
            self._train(trainable)
            return
        model.requires_grad_(False)
        self._train(
            TransformersLora(model, config.lora, select_layers(image_model.linear_layers(), config.lora.targets))
            if config.train == "lora"
            else TransformersFull(model, image_model.is_trainable)
        )

    @classmethod
    def from_config(cls, config: ImageTokenConfig, sampling: ImageTokenSamplingConfig) -> ImageTokenPolicy:
        """Load the configured model.

        Raises:
            ConfigError: it cannot be loaded, or has none of the layers to train.
        """
        name = config.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        return cls(load_image_token_model(config, torch.device(name)), config, sampling)

    @property
    def codes_per_image(self) -> int:
        """T, the number of decisions of every trajectory."""
        return self.image_model.codes_per_image

    def check_sample(self, sample: Sample) -> None:
        """Raise DataError unless the sample is a prompt without images, videos or other conditions."""
        if not sample.prompt:
            raise DataError(f"sample {sample.id!r} has no 'prompt' to draw")
        if sample.images or sample.videos or sample.conditions:
            raise DataError(
                f"sample {sample.id!r} comes with pictures, and token image generators draw from text alone"
            )

    @torch.no_grad()
    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Sample sum(r.n) images.

        Raises:
            DataError: a request has a start.
            ValueError: the requests have different sampling configurations.
        """
        if started := next((request for request in requests if request.start is not None), None):
            raise DataError(f"sample {started.sample.id!r}: rows of images cannot start differently (data.starts)")
        sampling = shared_sampling(requests, self.sampling)
        each = [request for request in requests for _ in range(request.n)]
        prompts = self._prompts([request.sample for request in each], sampling)
        with self._precision():
            codes, log_probs = self._draw(prompts, sampling, seed)
        recording = CodeRecording(prompts, codes, sampling)
        samples, groups = [request.sample for request in each], [request.group for request in each]
        return self._as_rollout(samples, groups, recording, log_probs)

    @torch.no_grad()
    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of these images: of `token_ids` if present, else of the image file that `text` names.

        Raises:
            DataError: an image cannot be read, or the token ids are not the codes of an image.
        """
        codes = torch.stack([self._codes_of(each) for each in targets]).to(self.device)
        samples = [each.sample for each in targets]
        recording = CodeRecording(self._prompts(samples, self.sampling), codes, self.sampling)
        rollout = self._as_rollout(samples, [each.group for each in targets], recording, torch.zeros(codes.shape))
        rollout.log_probs = self._score(recording)[0]
        return rollout

    def save(self, folder: Path) -> None:
        """Write a PEFT folder, or after full training a folder that `policy.model` can name."""
        if self.config.train == "lora":
            self._trainable.save(Path(folder))
            return
        self._trainable.save(self.image_model.weights_folder(folder))
        self.image_model.save_other_files(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote into the same parameters."""
        if self.config.train == "lora":
            self._trainable.load(folder)
            return
        self._trainable.load(self.image_model.weights_folder(folder))
        self.image_model.load_pixel_decoder(folder)

    def decoder_state(self) -> dict[str, Tensor]:
        """Return a copy of the decoder's parameters, which checkpoints differ in beside the trained ones."""
        return self.image_model.decoder_state()

    def load_decoder_state(self, state: dict[str, Tensor]) -> None:
        """Take what `decoder_state` returned."""
        self.image_model.load_decoder_state(state)

    def _prompts(self, samples: Sequence[Sample], sampling: ImageTokenSamplingConfig) -> list[TokenPrompt]:
        known: dict[str, TokenPrompt] = {}
        for sample in samples:
            if sample.prompt not in known:
                known[sample.prompt] = self.image_model.prompt(sample.prompt, sampling.negative_prompt)
        return [known[sample.prompt] for sample in samples]

    def _draw(self, prompts: list[TokenPrompt], sampling: ImageTokenSamplingConfig, seed: int) -> tuple[Tensor, Tensor]:
        """Sample codes [B, T]; return them and their log-probabilities [B, T]."""
        generator = torch.Generator(self.device).manual_seed(seed) if sampling.temperature else None
        texts = _batch_prompts(prompts, sampling)
        different = list(dict.fromkeys(texts))  # each is prefilled once, even if several images begin with it
        places = {ids: number for number, ids in enumerate(different)}
        index = torch.tensor([places[ids] for ids in texts], device=self.device)
        prefix = prefill_prompts(self.image_model, different, self.device)
        now = self._begin(prefix, index)
        head, remaining = self.image_model.code_head(), self.codes_per_image
        codes: list[Tensor] = []
        log_probs: list[Tensor] = []
        while True:
            raw = F.linear(self.image_model.code_states(now.states), *head)
            logits = scored_logits(_mixed(raw, len(prompts), sampling), sampling.temperature)
            drawn = sample_tokens(logits.flatten(0, 1), generator, sampling.top_p, sampling.top_k)
            codes.append(drawn.view(logits.shape[:2]))
            log_probs.append(logits.gather(-1, codes[-1][..., None])[..., 0] - logits.logsumexp(-1))
            remaining -= logits.shape[1]
            if not remaining:
                return torch.cat(codes, dim=1), torch.cat(log_probs, dim=1)
            now = now.append_codes(codes[-1].repeat(len(texts) // len(prompts), 1))

    def _begin(self, prefix: PrefixState, index: Tensor) -> PrefixState | ScaleState:
        """Return the state that the first codes of rows `index` of a prefix are drawn from."""
        if self.image_model.scales:
            return begin_scales(prefix.select(index))
        room = self.codes_per_image + sum(map(len, self.image_model.forced_tokens.values()))
        return prefix.share_prefix(index, room) if self.attention.shares_prompts else prefix.select(index)

    def _score(self, recording: CodeRecording) -> TokenScores:
        sampling, codes, model = recording.sampling, recording.codes, self.image_model
        texts = _batch_prompts(recording.prompts, sampling)
        with self._scoring():
            packs = self.attention.shares_prompts and codes.shape[1] > 1
            read = forward_scales if model.scales else forward_packed if packs else forward_images
            states = model.code_states(read(model, texts, codes.repeat(len(texts) // len(codes), 1)))
            weight, bias = model.code_head()
            if uses_fused_head(self.config.fused_log_probs, codes.numel(), len(weight)):
                # The head is linear, so the mixture of logits is the head's output for the mixture of states.
                flat = _mixed(states, len(codes), sampling).flatten(0, 1)
                at = torch.arange(codes.numel(), device=codes.device)
                grad_hint = grad_hint_at(self._loss_grad, at // codes.shape[1], at % codes.shape[1])
                scores = head_log_probs(flat, weight, bias, codes.flatten(), sampling.temperature, grad_hint=grad_hint)
                return TokenScores(*(each.view_as(codes) for each in scores))
            logits = _mixed(F.linear(states, weight, bias), len(codes), sampling)
        return token_log_probs(scored_logits(logits, sampling.temperature), codes)

    def _codes_of(self, target: TargetText) -> Tensor:
        """Return the codes [T] of a target."""
        if target.token_ids is None:
            return self.image_model.encode([load_image(target.text, target.sample.id)])[0]
        number = self.image_model.codes
        if len(target.token_ids) != self.codes_per_image or not all(0 <= code < number for code in target.token_ids):
            raise DataError(
                f"sample {target.sample.id!r}: an image has {self.codes_per_image} codes below {number}, but the "
                f"target has {len(target.token_ids)} numbers up to {max(target.token_ids, default=0)}"
            )
        return torch.tensor(target.token_ids)

    def _as_rollout(
        self, samples: list[Sample], groups: list[int], recording: CodeRecording, log_probs: Tensor
    ) -> Rollout:
        codes = recording.codes
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups, device=self.device),
            log_probs=log_probs.float(),
            mask=torch.ones(codes.shape, dtype=torch.bool, device=self.device),
            channel=torch.zeros(codes.shape, dtype=torch.long, device=self.device),
            media=self.image_model.decode(codes),
            policy_version=self.version,
            recording=recording,
            token_ids=codes.tolist(),
        )


def _batch_prompts(prompts: Sequence[TokenPrompt], sampling: ImageTokenSamplingConfig) -> list[tuple[int, ...]]:
    """Return the ids of B prompts; with guidance 2B, the unconditional ones last."""
    cond = [prompt.cond for prompt in prompts]
    return cond if sampling.guidance_scale == 1 else cond + [prompt.uncond for prompt in prompts]


def _mixed(logits: Tensor, rows: int, sampling: ImageTokenSamplingConfig) -> Tensor:
    """Return guided logits [B, K, V] from logits [B or 2B, K, V]; the temperature is not applied."""
    if len(logits) == rows:
        return logits
    return guided_logits(logits[:rows], logits[rows:], sampling.guidance_scale)


def load_image_token_model(config: ImageTokenConfig, device: torch.device) -> ImageTokenModel:
    """Return the configured model in evaluation mode, without dropout.

    Raises:
        ConfigError: it cannot be loaded, or no registered class loads it.
    """
    try:
        folder = _folder(config)
        image_model = _model_class(config, folder).from_folder(folder, config, device)
    except (OSError, ValueError) as err:
        if isinstance(err, ConfigError):
            raise
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} cannot be loaded as a token image generator: {first}") from err
    image_model.network.eval()
    for module in image_model.network.modules():  # checkpointing sets the training mode, but replay needs determinism
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0
    return image_model


def _model_class(config: ImageTokenConfig, folder: Path) -> type[ImageTokenModel]:
    """Return the class that `policy.architecture` names, or else the one of the folder's `model_type`."""
    if config.architecture is not None:
        return IMAGE_TOKEN_MODELS.load(config.architecture)
    if file := next((each for each in _CLASS_OF if (folder / each).is_file()), None):
        return IMAGE_TOKEN_MODELS.load(_CLASS_OF[file])
    kind = AutoConfig.from_pretrained(folder).model_type
    if kind in (known := _known_types()):
        return IMAGE_TOKEN_MODELS.load(kind)
    raise ConfigError(
        f"policy.model: {config.model} is a {kind}; kind image_tokens draws with {', '.join(known)}, or a folder with "
        f"{' or '.join(_CLASS_OF)} (docs/image-tokens.md). Name a class of your own with policy.architecture"
    )


def _known_types() -> list[str]:
    return [name for name in IMAGE_TOKEN_MODELS.names() if name not in _CLASS_OF.values()]


def drawing_model(network: Any, processor: Any) -> ImageTokenModel:
    """Return what draws with the network of a vision-language model that is loaded, a unified model.

    Raises:
        ConfigError: it draws nothing.
    """
    kind = network.config.model_type
    known = [name for name in _known_types() if IMAGE_TOKEN_MODELS.load(name).unified]
    if kind not in known:
        raise ConfigError(f"a {kind} draws nothing: policy.model is one of {', '.join(known)}")
    return IMAGE_TOKEN_MODELS.load(kind)(network, processor)


def _folder(config: ImageTokenConfig) -> Path:
    """Return a local folder, or download a repository of the Hub; pickles and code are never downloaded."""
    if Path(config.model).is_dir():
        return Path(config.model)
    patterns = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
    try:
        return Path(snapshot_download(config.model, revision=config.revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, ValueError) as err:
        first = str(err).partition("\n")[0]
        raise ConfigError(f"policy.model: {config.model} is no folder, and cannot be fetched: {first}") from err
