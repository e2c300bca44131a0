"""`VLMPolicy`: a policy from any vision-language model of transformers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.config.media import MediaConfig
from mmrl.config.policy import VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.servers import ServersConfig
from mmrl.data.media.reader import reader_of
from mmrl.data.sample import Sample
from mmrl.distributed.layout import Layout
from mmrl.environments.environment import Environment
from mmrl.errors import ConfigError, DataError
from mmrl.finetuning.trainable import NothingTrained, Trainable
from mmrl.finetuning.transformers_modules import TransformersFull
from mmrl.policy import Capability, DecisionCallback
from mmrl.rewards.parsing.boxes import Space
from mmrl.rollout import Rollout
from mmrl.rollout_request import RolloutRequest, RowStart, TargetText, row_starts, shared_sampling
from mmrl.tokens import pad_right
from mmrl.tokens.log_probs import TokenScores, linear_head
from mmrl.tokens.token_policy import TokenPolicy
from mmrl.understanding.encoded_prompt import EncodedPrompt
from mmrl.understanding.fp8_linear import use_fp8
from mmrl.understanding.media_gradient_check import check_recorded_media
from mmrl.understanding.objective_heads import ObjectiveHeads
from mmrl.understanding.observation_encoder import ObservationEncoder
from mmrl.understanding.prompt_encoder import PromptEncoder
from mmrl.understanding.rollout_engine import RolloutEngine
from mmrl.understanding.serving.served_engine import ServedEngine
from mmrl.understanding.serving.weight_routes import build_route
from mmrl.understanding.serving.weight_versions import VersionFolders
from mmrl.understanding.speculative_engine import build_engine
from mmrl.understanding.tasks.coordinates import CoordinateFormat, coordinate_format, model_input_sizes
from mmrl.understanding.turn_rollout import Trajectory, TurnWriter
from mmrl.understanding.vlm import (
    VLM,
    full_training_of_parts,
    layers_for_fp8,
    load_vlm,
    lora_of_parts,
    part_of,
    trained_parts,
)
from mmrl.understanding.vlm_replay import TokenRecording, packed_scores, row_scores


class VLMPolicy(TokenPolicy):
    """A vision-language model that generates answers and recomputes the log-probabilities of their tokens.

        policy = VLMPolicy.from_config(VLMConfig(model="Qwen/Qwen2.5-VL-3B-Instruct"), TokenSamplingConfig())
        rollout = policy.rollout([RolloutRequest(sample, n=8, group=0)], seed=0)

    Each prompt, with its images and videos, is computed once for all of its answers, in rollout and in update.
    """

    capabilities = TokenPolicy.capabilities | {Capability.ROW_STARTS}
    config: VLMConfig

    def __init__(
        self, vlm: VLM, config: VLMConfig, sampling: TokenSamplingConfig, media: MediaConfig, frozen: bool = False
    ) -> None:
        """`frozen`: nothing is trained, against `config.train`, and no reference is kept."""
        super().__init__(vlm.model, config, vlm.unshared_reason)
        self.vlm, self.sampling = vlm, sampling
        self.engine: RolloutEngine = build_engine(vlm, self.attention, sampling)
        self._checked_media: set[tuple[bool, ...]] = set()  # (images, videos) kinds that were shown to reach the loss
        self.reader = reader_of(media)
        self.reader.resized_by_model = model_input_sizes(vlm.processor, self.reader.budget.image)
        self._encoder = PromptEncoder(vlm, self.reader)
        self.environment: Environment | None = None
        self._context: int | None = None
        self._waves = 1
        parts = trained_parts(config)
        rounded = layers_for_fp8(vlm.model) if config.fp8 else []
        self._train(
            NothingTrained(vlm.model)
            if frozen
            else lora_of_parts(vlm.model, config.lora, parts)
            if config.train == "lora"
            else full_training_of_parts(vlm.model, parts)
        )
        self.heads = ObjectiveHeads(vlm.model, config.heads) if config.heads else None
        self._fp8 = None if config.fp8 is None else use_fp8(rounded, config.fp8)

    @classmethod
    def from_config(
        cls,
        config: VLMConfig,
        sampling: TokenSamplingConfig,
        media: MediaConfig | None = None,
        frozen: bool = False,
    ) -> VLMPolicy:
        """Load the model that a configuration names; `frozen`: to score alone.

        Raises:
            ConfigError: it cannot be loaded, or lacks a part or layer that is to be trained.
        """
        return cls(load_vlm(config), config, sampling, media or MediaConfig(), frozen)

    def play_in(self, environment: Environment | None, context_tokens: int | None = None, waves: int = 1) -> None:
        """Let every rollout from now on be an episode of several turns; None: one answer to each prompt.

        Args:
            environment: the partner of the policy. Its instructions are read before the text of every sample.
            context_tokens: the most tokens of a trajectory, prompt and observations included; an episode ends before
                a turn that might not fit. None: as many as the model has positions for.
            waves: parts of a call that are written one after another, so that the environment answers one while the
                next is written.

        Raises:
            DataError: the model's chat template cannot continue a conversation.
            ConfigError: the processes divide the model, and would not make equally many calls of it.
        """
        self._encoder = PromptEncoder(self.vlm, self.reader, self._encoder.keep_media)
        if environment is not None:
            self._check_turns(self.layout)
            self._encoder.instructions = environment.instructions
            ObservationEncoder(self.vlm, self._encoder, self.reader).check_family()
        self.environment, self._waves = environment, waves
        most = getattr(self.vlm.model.config.get_text_config(), "max_position_embeddings", None)
        self._context = min((each for each in (context_tokens, most) if each is not None), default=None)

    def parameters_to_train(self) -> dict[str, nn.Parameter]:
        """Return the trained parameters by their names in the model; heads are `heads.NAME`."""
        heads = {} if self.heads is None else self.heads.weights
        return super().parameters_to_train() | {f"heads.{name}": weight for name, weight in heads.items()}

    @contextmanager
    def reference(self) -> Iterator[None]:
        """Return a context in which the policy computes with the parameters that training started from."""
        with super().reference(), nullcontext() if self.heads is None else self.heads.original():
            yield

    def head_in_place(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the chosen head or blend, or else that of all in equal parts."""
        return nullcontext() if self.heads is None else self.heads.blended()

    @contextmanager
    def _precision(self) -> Iterator[None]:
        with super()._precision(), self.head_in_place():
            yield

    @contextmanager
    def _rollout_precision(self) -> Iterator[None]:
        with self._precision(), nullcontext() if self._fp8 is None else self._fp8.of_rollout():
            yield

    def freeze(self) -> None:
        """Train nothing from now on, and let go of the reference."""
        self._train(NothingTrained(self.vlm.model))

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Return a context in which rollouts are one answer to each prompt, as without an environment."""
        environment, context_tokens, waves = self.environment, self._context, self._waves
        if environment is not None:
            self.play_in(None)
        try:
            yield
        finally:
            if environment is not None:
                self.play_in(environment, context_tokens, waves)

    def train_also(self, is_trained: Callable[[str], bool]) -> Trainable:
        """Train further parameters of the model, of another use of it, and return what trains all.

        `is_trained` maps the name of a parameter to True if that use trains it. Adapters lie on the language model,
        which every use has, so with them nothing is added.
        """
        if self.config.train == "full":
            parts = trained_parts(self.config)
            self._train(TransformersFull(self.vlm.model, lambda name: part_of(name) in parts or is_trained(name)))
        return self._trainable

    def __deepcopy__(self, memo: dict[int, Any]) -> VLMPolicy:
        """Return a copy that plays in the same environment: its tools count their failures over all episodes."""
        if self.environment is not None:
            memo[id(self.environment)] = self.environment
        copied = object.__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return copied

    def place(self, layout: Layout) -> None:
        """Let the layout divide the model over the processes; before an optimizer or a copy is made.

        Raises:
            ConfigError: episodes of several turns would make unequally many calls of a divided model.
        """
        if self.environment is not None:
            self._check_turns(layout)
        super().place(layout)

    def serve(self, settings: ServersConfig, folder: Path) -> None:
        """Let servers generate the answers from now on; `folder` is for weights, unless the settings name another.

        Raises:
            ConfigError: the variable with the servers' key is not set, or a library that the route needs is missing.
        """
        folders = VersionFolders(Path(settings.folder or folder), settings.folder_on_server)
        route = build_route(settings, folders, self.vlm.model)
        self.engine = ServedEngine(settings, folders, route, self, self.sampling.temperature, self.config.dtype)
        instructions = self._encoder.instructions
        self._encoder = PromptEncoder(self.vlm, self.reader, keep_media=True)
        self._encoder.instructions = instructions

    def adopt(self, take: Callable[[], bool]) -> None:
        """Let servers get newer weights while they write answers; see `InterruptiblePolicy`.

        Raises:
            ConfigError: answers are written in process, or servers get weights by another route than a folder.
        """
        if not isinstance(self.engine, ServedEngine):
            raise ConfigError("run.overlap.interrupt: in process an answer ends under the weights that it began with")
        self.engine.adopt(lambda: self.version if take() else None)

    def rollout_metrics(self) -> dict[str, float]:
        """Return metrics of the engine since the last call."""
        return self.engine.metrics()

    def write_weights(self, folder: Path) -> None:
        """Write the trained parameters: a PEFT folder, or all weights as safetensors."""
        self._trainable.save(folder)
        if self.heads is not None:
            self.heads.save(folder)

    def prompt_tokens(self, sample: Sample, start: RowStart | None = None) -> Tensor:
        """Return the tokens [L] of a prompt, those of images and videos included.

        Raises:
            DataError: the model does not take the sample's media.
        """
        return self._prompt(sample, start).inputs["input_ids"][0]

    @torch.no_grad()
    def prompt_states(self, sample: Sample) -> Tensor:
        """Return the hidden states [L, D] float32 that the output layer reads at the L tokens of a prompt.

        Raises:
            DataError: the model does not take the sample's media.
            ConfigError: the model has no output layer after its hidden states.
        """
        if linear_head(self.vlm.model) is None:
            raise ConfigError(f"{type(self.vlm.model).__name__} has no hidden states that an output layer reads")
        with self._precision():
            inputs = self.vlm.to_device(self._prompt(sample, None).inputs)
            return self.vlm.model.base_model(**inputs, use_cache=False).last_hidden_state[0].float()

    @torch.no_grad()
    def score_recording(self, recording: TokenRecording) -> Tensor:
        """Return the log-probabilities [B, T] of recorded answers; 0 after an answer's end."""
        return self._score(recording)[0]

    def coordinates(self, requested: Space | None) -> CoordinateFormat:
        """Return the format of coordinates in answers: in the family's own space, or in the requested one."""
        family = self.vlm.family
        return coordinate_format(family.name, family.space, self.vlm.processor, self.reader.budget.image, requested)

    def check_sample(self, sample: Sample) -> None:
        """Check that the model's processor takes the media of a sample; no file is opened.

        Raises:
            DataError: it does not.
        """
        self._encoder.check_sample(sample)

    @torch.no_grad()
    def announce(self, calls: Sequence[tuple[Sequence[RolloutRequest], int]]) -> None:
        """Let servers generate the answers of all these calls (requests, seed) of `rollout` at once.

        Of episodes, these are the first turns, unless a call is written in several waves or turns are forced.
        """
        begun = [(self._begun(requests), seed) for requests, seed in calls]
        forced = any(request.start is not None and request.start.turns for requests, _ in begun for request in requests)
        if isinstance(self.engine, ServedEngine) and not forced and (self.environment is None or self._waves == 1):
            self.engine.load_weights(self.vlm.model, self.version)
            self.engine.announce([(*self._encoded(requests), seed) for requests, seed in calls])

    @torch.no_grad()
    def rollout(self, requests: Sequence[RolloutRequest], seed: int) -> Rollout:
        """Generate B = sum(r.n) answers."""
        requests = self._begun(requests)
        prompts, counts, sampling = self._encoded(requests)
        self.engine.load_weights(self.vlm.model, self.version)
        if self.environment is not None:
            return self._episodes(requests, prompts, sampling, seed)
        with self._rollout_precision():
            generated = self.engine.generate(prompts, counts, sampling, seed)
        prompt_of = [number for number, request in enumerate(requests) for _ in range(request.n)]
        rollout = self._as_rollout(
            [requests[number].sample for number in prompt_of],
            [requests[number].group for number in prompt_of],
            TokenRecording(prompts, prompt_of, *_padded(generated.token_ids, self.vlm.padding), sampling.temperature),
            row_starts(requests),
        )
        for row, values in enumerate(generated.log_probs):
            rollout.log_probs[row, : len(values)] = torch.tensor(values)
        return rollout if generated.versions is None else _of_versions(rollout, generated.versions)

    def _episodes(
        self, requests: Sequence[RolloutRequest], prompts: list[EncodedPrompt], sampling: TokenSamplingConfig, seed: int
    ) -> Rollout:
        """Return a rollout of trajectories of several turns."""
        counts = [request.n for request in requests]
        with self._rollout_precision():
            rows, outcomes = self._turn_writer().write(
                [request.sample for request in requests],
                prompts,
                counts,
                sampling,
                seed,
                starts=[request.start for request in requests],
                max_turns=requests[0].max_turns,
            )
        prompt_of = [number for number, count in enumerate(counts) for _ in range(count)]
        for number, request in enumerate(requests):
            if request.start is not None and request.start.turns:  # the prompt that its rows continue holds them
                prompts[number] = rows[prompt_of.index(number)].prompt
        groups = [requests[number].group for number in prompt_of]
        rollout = self._as_episodes(rows, outcomes, groups, prompts, prompt_of, sampling.temperature)
        return replace(rollout, starts=row_starts(requests))

    def _turn_writer(self) -> TurnWriter:
        if self.environment is None:
            raise ConfigError("environment: a text of several turns needs one, which answers them; set it")
        encoder = ObservationEncoder(self.vlm, self._encoder, self.reader)
        return TurnWriter(self.vlm, self.engine, encoder, self.environment, self.reader, self._context, self._waves)

    def _as_episodes(
        self,
        rows: Sequence[Trajectory],
        outcomes: Sequence[Mapping[str, Any]],
        groups: list[int],
        prompts: list[EncodedPrompt],
        prompt_of: list[int],
        temperature: float,
    ) -> Rollout:
        """Return the trajectories as a rollout, with their log-probabilities as sampled."""
        tokens, lengths = _padded([row.token_ids for row in rows], self.vlm.padding)
        observed = tuple(tuple(row.observed) for row in rows)
        recording = TokenRecording(prompts, prompt_of, tokens, lengths, temperature, observed)
        rollout = self._as_rollout([row.sample for row in rows], groups, recording)
        for number, row in enumerate(rows):
            rollout.log_probs[number, : len(row.log_probs)] = torch.tensor(row.log_probs)
        assert self.environment is not None
        records = [row.record(outcome, self.environment) for row, outcome in zip(rows, outcomes, strict=True)]
        return replace(rollout, media=[record.texts[-1] for record in records], episodes=records)

    @torch.no_grad()
    def score_targets(self, targets: Sequence[TargetText]) -> Rollout:
        """Return a rollout of target texts, each with its end token; targets of several turns are all of a call.

        An episode of exact tokens that the environment ends early, or that breaks down, has the turns up to there.

        Raises:
            DataError: a sample cannot be read, a text contains a placeholder token of media, or an episode of texts
                ends before the last of its turns.
            ConfigError: a target has several turns, and the policy has no environment.
            ValueError: the targets were sampled at several temperatures.
        """
        prompts: dict[tuple[str, str, str | None], EncodedPrompt] = {}
        prompt_of, numbers = [], {}
        for each in targets:
            key = (each.sample.id, each.start.prefix, each.start.prompt) if each.start else (each.sample.id, "", None)
            if key not in prompts:
                numbers[key] = len(prompts)
                prompts[key] = self._prompt(each.sample, each.start)
            prompt_of.append(numbers[key])
        starts = [None if each.start is None else replace(each.start, max_new_tokens=None) for each in targets]
        sampling = self._sampling(self.sampling, starts)
        if any(each.turns or each.turn_tokens or (each.start is not None and each.start.turns) for each in targets):
            return self._score_turns(targets, list(prompts.values()), prompt_of, sampling)
        prefixes = [self.vlm.encode(each.prefix) if each.prefix else [] for each in targets]
        token_ids = [
            [*before, *([*self.vlm.encode(each.text), self.vlm.end] if each.token_ids is None else each.token_ids)]
            for each, before in zip(targets, prefixes, strict=True)
        ]
        for each, ids in zip(targets, token_ids, strict=True):
            self._check_target(each, ids)
        rollout = self._as_rollout(
            [each.sample for each in targets],
            [each.group for each in targets],
            TokenRecording(
                list(prompts.values()), prompt_of, *_padded(token_ids, self.vlm.padding), sampling.temperature
            ),
            [each.start for each in targets] if any(each.start for each in targets) else None,
        )
        for row, before in enumerate(prefixes):
            rollout.mask[row, : len(before)] = False
        rollout.log_probs.copy_(self._score(rollout.recording)[0])
        return rollout

    def _score_turns(
        self,
        targets: Sequence[TargetText],
        prompts: list[EncodedPrompt],
        prompt_of: list[int],
        sampling: TokenSamplingConfig,
    ) -> Rollout:
        scripted = [
            [list(ids) for ids in each.turn_tokens]
            or [[*self.vlm.encode(text), self.vlm.end] for text in each.turns or (each.text,)]
            for each in targets
        ]
        for each, turns in zip(targets, scripted, strict=True):
            for ids in turns:
                self._check_target(each, ids)
        rows, outcomes = self._turn_writer().write(
            [each.sample for each in targets],
            [prompts[number] for number in prompt_of],
            [1] * len(targets),
            sampling,
            seed=0,
            starts=[each.start for each in targets],
            scripted=scripted,
        )
        for each, row, turns in zip(targets, rows, scripted, strict=True):
            if len(row.texts) < len(turns) and not each.turn_tokens:
                raise DataError(
                    f"sample {each.sample.id!r}: its demonstration has {len(turns)} turns, and the environment ended "
                    f"the episode after {len(row.texts)} ({row.end})"
                )
        if any(each.start is not None and each.start.turns for each in targets):
            prompts, prompt_of = [row.prompt for row in rows], list(range(len(rows)))
        groups = [each.group for each in targets]
        rollout = self._as_episodes(rows, outcomes, groups, prompts, prompt_of, sampling.temperature)
        rollout.log_probs.copy_(self._score(rollout.recording)[0])
        return rollout

    def replay(self, rollout: Rollout, step_indices: Sequence[int], visit: DecisionCallback) -> None:
        """Recompute the log-probabilities of the tokens at `step_indices` and pass them to `visit` in one call.

        Raises:
            DataError: at the first replay with gradients, if an image or video does not reach the loss.
        """
        if torch.is_grad_enabled():
            names = [sample.id for sample in rollout.samples]
            with self._precision():
                self._checked_media |= check_recorded_media(self.vlm, rollout.recording, names, self._checked_media)
        super().replay(rollout, step_indices, visit)

    def lr_scale(self, name: str) -> float:
        """Return the learning rate of a parameter relative to `optimizer.lr`; 1 but for vision, connector and heads."""
        if name.startswith("heads."):
            return self.config.heads_lr_scale
        scales = {"vision": self.config.vision.lr_scale, "connector": self.config.connector.lr_scale}
        return scales.get(part_of(name), 1.0)

    def save(self, folder: Path) -> None:
        """Write a PEFT folder, or with full training a folder that `AutoModelForImageTextToText` loads.

        Of a model with heads, that folder holds their blend in equal parts, and the heads beside it.
        """
        with self.head_in_place():
            self.write_weights(Path(folder))
        if self.config.train == "full":
            self.vlm.processor.save_pretrained(folder)

    def load(self, folder: Path) -> None:
        """Load what `save` wrote into the same parameters."""
        super().load(folder)
        if self.heads is not None:
            self.heads.load(Path(folder))

    def _check_turns(self, layout: Layout) -> None:
        if layout.gathers_in_calls:
            raise ConfigError(
                "environment: run.place strict needs as many calls of the model in every process, and episodes of "
                "several turns do not make them: choose another place, or leave the environment out"
            )

    def _check_target(self, target: TargetText, token_ids: Sequence[int]) -> None:
        """Raise for placeholder tokens of media: their probability is 0, which makes a loss infinite."""
        suppressed = set(self.vlm.suppressed.tolist())
        if (found := next((number for number in token_ids if number in suppressed), None)) is not None:
            mark = self.vlm.tokenizer.convert_ids_to_tokens(found)
            raise DataError(
                f"sample {target.sample.id!r}: its target text contains {mark}, a placeholder that is never written"
            )

    def _encoded(
        self, requests: Sequence[RolloutRequest]
    ) -> tuple[list[EncodedPrompt], list[int], TokenSamplingConfig]:
        """Return the prompts of a call, how many answers each gets, and the sampling of all."""
        sampling = self._sampling(shared_sampling(requests, self.sampling), [request.start for request in requests])
        prompts = [self._prompt(request.sample, request.start) for request in requests]
        return prompts, [request.n for request in requests], sampling

    def _begun(self, requests: Sequence[RolloutRequest]) -> list[RolloutRequest]:
        """Return the requests with the first turns that the environment has for their samples.

        Raises:
            ConfigError: a request begins with turns, and no environment answers them.
        """
        first_turns = getattr(self.environment, "first_turns", None)
        found = []
        for request in requests:
            start = RowStart() if request.start is None else request.start
            if start.turns and self.environment is None:
                raise ConfigError("data.starts: turns that episodes begin with need an environment, which answers them")
            turns = start.turns or (() if first_turns is None else tuple(first_turns(request.sample)))
            found.append(replace(request, start=replace(start, turns=turns)) if turns else request)
        return found

    def _sampling(self, sampling: TokenSamplingConfig, starts: Sequence[RowStart | None]) -> TokenSamplingConfig:
        """Return the sampling of all rows of a call, within the limits of their starts."""
        limits = {RowStart().limits if start is None else start.limits for start in starts}
        if len(limits) > 1:
            raise ValueError("requests of one call must share the limits of their starts: make a call for each")
        most, temperature = limits.pop() if limits else (None, None)
        own = {"max_new_tokens": most, "temperature": temperature}
        return sampling.model_copy(update={name: value for name, value in own.items() if value is not None})

    def _prompt(self, sample: Sample, start: RowStart | None) -> EncodedPrompt:
        """Return the prompt of a row, with the forced beginning of its answer unless forced turns come before it."""
        if start is None:
            return self._encoder.encode(sample)
        forced = self.vlm.encode(start.prefix) if start.prefix and not start.turns else []
        return self._encoder.encode(start.sample(sample)).followed_by(forced, self.vlm.family)

    def _as_rollout(
        self,
        samples: list[Sample],
        groups: list[int],
        recording: TokenRecording,
        starts: list[RowStart | None] | None = None,
    ) -> Rollout:
        mask = torch.arange(recording.tokens.shape[1]) < torch.tensor(recording.lengths)[:, None]
        mask = mask.to(self.vlm.device)
        token_ids = [r[:n] for r, n in zip(recording.tokens.tolist(), recording.lengths, strict=True)]
        written = zip(starts or [None] * len(token_ids), token_ids, strict=True)
        return Rollout(
            samples=samples,
            group_index=torch.tensor(groups, device=self.vlm.device),
            log_probs=torch.zeros(mask.shape, device=self.vlm.device),
            mask=mask,
            channel=recording.turns().to(self.vlm.device),
            media=[("" if start is None else start.prefix) + self.vlm.decode(ids) for start, ids in written],
            policy_version=self.version,
            recording=recording,
            token_ids=token_ids,
            starts=starts,
        )

    def _score(self, recording: TokenRecording) -> TokenScores:
        with self._scoring() as recomputes:
            if self.attention.shares_prompts:
                return packed_scores(self.vlm, recording, self.config.fused_log_probs, self._loss_grad)
            return row_scores(self.vlm, recording, separate_prompts=recomputes or self.vlm.extends_token_by_token)


def _of_versions(rollout: Rollout, versions: Sequence[Sequence[int]]) -> Rollout:
    """Return a rollout of these versions [B][T], the updates before the weights that wrote each token."""
    oldest = min(min(row) for row in versions)
    found = torch.full(rollout.mask.shape, oldest, device=rollout.mask.device)
    for number, row in enumerate(versions):
        found[number, : len(row)] = torch.tensor(row)
    return replace(rollout, versions=found, policy_version=oldest)


def _padded(token_ids: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, list[int]]:
    return pad_right(token_ids, padding)[0], [len(row) for row in token_ids]
