"""`VLMPolicy`: a policy from any vision-language model of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.data.media.reader import reader_of
from mmrl.data.sample import Sample
from mmrl.errors import DataError
from mmrl.policy import DecisionCallback, Rollout, RolloutRequest, TargetText
from mmrl.tokens import pad_right, scored_logits, token_log_probs
from mmrl.tokens.token_policy import TokenPolicy
from mmrl.understanding.encoded_prompt import EncodedPrompt, collate, is_of_videos, pixel_inputs, stackable
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.rollout_engine import RolloutEngine, TransformersEngine
from mmrl.understanding.serving.served_engine import ServedEngine
from mmrl.understanding.serving.weight_routes import build_route
from mmrl.understanding.serving.weight_versions import VersionFolders
from mmrl.understanding.shared_prompt import forward_uncached
from mmrl.understanding.vlm import VLM, full_training_of_parts, load_vlm, lora_of_parts, part_of, trained_parts
from mmrl.understanding.vlm_replay import Scores, TokenRecording, packed_scores, row_scores

GRIDS = {"pixel_values": "image_grid_thw", "pixel_values_videos": "video_grid_thw"}
"""{input of patches: the input with the patch grid of each image or video}."""


class VLMPolicy(TokenPolicy):
    """A vision-language model that generates answers and recomputes the log-probabilities of their tokens.

        policy = VLMPolicy.from_config(VLMConfig(model="Qwen/Qwen2.5-VL-3B-Instruct"), TokenSamplingConfig())
        rollout = policy.rollout([RolloutRequest(sample, n=8, group=0)], seed=0)

    Each prompt, with its images and videos, is computed once for all of its answers, in rollout and in update.
    """

    config: VLMConfig

    def __init__(self, vlm: VLM, config: VLMConfig, sampling: TokenSamplingConfig, media: MediaConfig) -> None:
        reason = "" if vlm.family.causal else f"tokens of a {vlm.family.name} prompt may attend to later ones"
        super().__init__(vlm.model, config, reason or vlm.family.unshared or None)
        self.vlm, self.sampling = vlm, sampling
        self.engine: RolloutEngine = TransformersEngine(vlm, self.attention.shares_prompts)
        self._checked_media: set[tuple[bool, bool]] = set()  # (images, videos) kinds that were shown to reach the loss
        self.reader = reader_of(media)
        self._encoder = PromptEncoder(vlm, self.reader)
        parts = trained_parts(config)
        self._train(
            lora_of_parts(vlm.model, config.lora, parts)
            if config.train == "lora"
            else full_training_of_parts(vlm.model, parts)
        )

    @classmethod
    def from_config(
        cls, config: VLMConfig, sampling: TokenSamplingConfig, media: MediaConfig | None = None
    ) -> VLMPolicy:
        """Load the model that a configuration names.

        Raises:
            ConfigError: it cannot be loaded, or lacks a part or layer that is to be trained.
        """
        return cls(load_vlm(config), config, sampling, media or MediaConfig())

    def serve(self, settings: ServersConfig, folder: Path) -> None:
        """Let servers generate the answers from now on; `folder` is for weights, unless the settings name another.

        Raises:
            ConfigError: the variable with the servers' key is not set, or a library that the route needs is missing.
        """
        folders = VersionFolders(Path(settings.folder or folder), settings.folder_on_server)
        route = build_route(settings, folders, self.vlm.model)
        self.engine = ServedEngine(settings, folders, route, self, self.sampling.temperature, self.config.dtype)
        self._encoder = PromptEncoder(self.vlm, self.reader, keep_media=True)

    def rollout_metrics(self) -> dict[str, float]:
        """Return metrics of the engine since the last call; none of the policy's own model."""
        return self.engine.metrics() if isinstance(self.engine, ServedEngine) else {}

    def write_weights(self, folder: Path) -> None:
        """Write the trained parameters: a PEFT folder, or all weights as safetensors."""
        self._trainable.save(folder)

    @torch.no_grad()
    def score_recording(self, recording: TokenRecording) -> Tensor:
        """Return the log-probabilities [B, T] of recorded answers; 0 after an answer's end."""
        return self._score(recording)[0]

    def check_sample(self, sample: Sample) -> None:
        """Check that the model's processor takes the media of a sample; no file is opened.

        Raises:
            DataError: it does not.
        """
        self._encoder.check_sample(sample)

    @torch.no_grad()
    def announce(self, calls: Sequence[tuple[Sequence[RolloutRequest], int]]) -> None:
        """Let servers generate the answers of all these calls (requests, seed) of `rollout` at once."""
        if isinstance(self.engine, ServedEngine):
            self.engine.load_weights(self.vlm.model, self.version)
            self.engine.announce([(*self._encoded(requests), seed) for requests, seed in calls])

    @torch.no_grad()
    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Generate B = sum(r.n) answers."""
        prompts, counts, sampling = self._encoded(requests)
        self.engine.load_weights(self.vlm.model, self.version)
        with self._precision():
            generated = self.engine.generate(prompts, counts, sampling, seed)
        prompt_of = [number for number, request in enumerate(requests) for _ in range(request.n)]
        rollout = self._as_rollout(
            [requests[number].sample for number in prompt_of],
            [requests[number].group for number in prompt_of],
            TokenRecording(prompts, prompt_of, *_padded(generated.token_ids, self.vlm.padding), sampling.temperature),
            [requests[number].prefix or "" for number in prompt_of],
        )
        for row, values in enumerate(generated.log_probs):
            rollout.log_probs[row, : len(values)] = torch.tensor(values)
        return rollout

    @torch.no_grad()
    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of target texts, each with its end token.

        Raises:
            DataError: a sample cannot be read, or a text contains a placeholder token of media.
        """
        prompts: dict[str, EncodedPrompt] = {}
        prompt_of, numbers = [], {}
        for each in targets:
            if each.sample.id not in prompts:
                numbers[each.sample.id] = len(prompts)
                prompts[each.sample.id] = self._prompt(each.sample, None)
            prompt_of.append(numbers[each.sample.id])
        token_ids = [
            [*self.vlm.encode(each.text), self.vlm.end] if each.token_ids is None else list(each.token_ids)
            for each in targets
        ]
        for each, ids in zip(targets, token_ids, strict=True):
            self._check_target(each, ids)
        rollout = self._as_rollout(
            [each.sample for each in targets],
            [each.group for each in targets],
            TokenRecording(
                list(prompts.values()), prompt_of, *_padded(token_ids, self.vlm.padding), self.sampling.temperature
            ),
            [""] * len(targets),
        )
        rollout.log_probs.copy_(self._score(rollout.recording)[0])
        return rollout

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute the log-probabilities of the tokens at `step_indices` and pass them to `visit` in one call.

        Raises:
            DataError: at the first replay with gradients, if an image or video does not reach the loss.
        """
        if torch.is_grad_enabled():
            self._check_media_reach_loss(rollout)
        super().replay(rollout, step_indices, visit)

    def lr_scale(self, name: str) -> float:
        """Return the learning rate of a parameter relative to `optimizer.lr`; 1 for the language model."""
        scales = {"vision": self.config.vision.lr_scale, "connector": self.config.connector.lr_scale, "language": 1.0}
        return scales[part_of(name)]

    def save(self, folder: Path) -> None:
        """Write a PEFT folder, or with full training a folder that `AutoModelForImageTextToText` loads."""
        self._trainable.save(Path(folder))
        if self.config.train == "full":
            self.vlm.processor.save_pretrained(folder)

    def _check_media_reach_loss(self, rollout: Rollout) -> None:
        """Run the gradient check once for each combination of images and videos that a run replays."""
        recording: TokenRecording = rollout.recording
        new = media_kinds(recording.prompts) - self._checked_media
        if not new:
            return
        firsts = [recording.prompt_of.index(number) for number in range(len(recording.prompts))]
        answers = [(rollout.token_ids or [])[row] for row in firsts]
        with self._precision():
            check_media_affects_logits(
                self.vlm, recording.prompts, answers, [rollout.samples[row].id for row in firsts]
            )
        self._checked_media |= new

    def _check_target(self, target: TargetText, token_ids: Sequence[int]) -> None:
        """Raise for placeholder tokens of media: their probability is 0, which makes a loss infinite."""
        suppressed = set(self.vlm.suppressed.tolist())
        if found := next((number for number in token_ids if number in suppressed), None):
            mark = self.vlm.tokenizer.convert_ids_to_tokens(found)
            raise DataError(
                f"sample {target.sample.id!r}: its target text contains {mark}, a placeholder that is never written"
            )

    def _encoded(
        self, requests: Sequence[RolloutRequest]
    ) -> tuple[list[EncodedPrompt], list[int], TokenSamplingConfig]:
        """Return the prompts of a call, how many answers each gets, and the sampling of all."""
        sampling = next((request.sampling for request in requests if request.sampling is not None), self.sampling)
        prompts = [self._prompt(request.sample, request.prefix) for request in requests]
        return prompts, [request.n for request in requests], sampling

    def _prompt(self, sample: Sample, prefix: str | None) -> EncodedPrompt:
        return self._encoder.encode(sample).followed_by(self.vlm.encode(prefix) if prefix else [], self.vlm.family)

    def _as_rollout(
        self, samples: list[Sample], groups: list[int], recording: TokenRecording, prefixes: list[str]
    ) -> Rollout:
        mask = torch.arange(recording.tokens.shape[1]) < torch.tensor(recording.lengths)[:, None]
        mask = mask.to(self.vlm.device)
        token_ids = [r[:n] for r, n in zip(recording.tokens.tolist(), recording.lengths, strict=True)]
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups, device=self.vlm.device),
            log_probs=torch.zeros(mask.shape, device=self.vlm.device),
            mask=mask,
            channel=torch.zeros(mask.shape, dtype=torch.long, device=self.vlm.device),
            media=[p + self.vlm.decode(ids) for p, ids in zip(prefixes, token_ids, strict=True)],
            policy_version=self.version,
            recording=recording,
            token_ids=token_ids,
        )

    def _score(self, recording: TokenRecording) -> Scores:
        with self._scoring() as recomputes:
            if self.attention.shares_prompts:
                return packed_scores(self.vlm, recording, self.config.fused_log_probs, self._loss_grad)
            return row_scores(self.vlm, recording, separate_prompts=recomputes or self.vlm.extends_token_by_token)


def _padded(token_ids: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, list[int]]:
    return pad_right(token_ids, padding)[0], [len(row) for row in token_ids]


def media_kinds(prompts: Sequence[EncodedPrompt]) -> set[tuple[bool, bool]]:
    """Return the (has images, has videos) combinations of prompts with media."""
    return {(p.images > 0, p.videos > 0) for p in prompts if p.images or p.videos}


def check_media_affects_logits(
    vlm: VLM,
    prompts: Sequence[EncodedPrompt],
    answers: Sequence[Sequence[int]],  # token ids, one answer to each prompt
    names: Sequence[str],  # ids of the samples, for messages
) -> None:
    """Check that every image and video of the prompts reaches the loss: libraries drop media silently.

    Raises:
        DataError: the probability of an answer has no gradient with respect to an image or video of its prompt.
    """
    with torch.enable_grad():
        for numbers in stackable(prompts):
            some = [number for number in numbers if prompts[number].images or prompts[number].videos]
            if some:
                _check(vlm, [prompts[n] for n in some], [answers[n] for n in some], [names[n] for n in some])


def _check(vlm: VLM, prompts: Sequence[EncodedPrompt], answers: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    inputs = vlm.to_device(collate(prompts, vlm.padding))
    pixels = {name: inputs[name].requires_grad_() for name in pixel_inputs(inputs)}
    tokens, mask = (each.to(vlm.device) for each in pad_right(answers, vlm.padding))
    logits = forward_uncached(vlm.model, vlm.family, inputs, tokens)
    log_probs, _ = token_log_probs(scored_logits(logits, 1.0, vlm.suppressed), tokens)
    gradients = torch.autograd.grad(log_probs[mask].sum(), list(pixels.values()), allow_unused=True)
    for (name, values), gradient in zip(pixels.items(), gradients, strict=True):
        known = torch.zeros_like(values) if gradient is None else gradient
        owners = [(sample, prompt) for sample, prompt in zip(names, prompts, strict=True) if name in prompt.inputs]
        joined = -1 if vlm.family.in_one_row else 0
        shares = known.split([prompt.inputs[name].shape[joined] for _, prompt in owners], dim=joined)
        for (sample, prompt), share in zip(owners, shares, strict=True):
            number = prompt.videos if is_of_videos(name) else prompt.images
            if not all(bool(item.any()) for item in _items(share, prompt.inputs.get(GRIDS.get(name, "")), number)):
                kind = "a video" if is_of_videos(name) or not prompt.images else "an image"
                raise DataError(
                    f"sample {sample!r}: {kind} went into {type(vlm.model).__name__} and did not reach the loss: "
                    "the answer has no gradient with respect to its pixels. Nothing was updated"
                )


def _items(share: Tensor, grid: Tensor | None, number: int) -> Sequence[Tensor]:
    """Split pixels into those of each image or video: by a grid of patches, or where a dimension has their number.

    Where tiles or frames of several are in one dimension, they are returned as one.
    """
    if grid is not None:
        return share.split(grid.prod(-1).tolist())
    if len(share) == number:
        return share.split(1)
    return share[0].split(1) if len(share) == 1 and share.ndim > 4 and share.shape[1] == number else [share]
