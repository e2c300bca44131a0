"""Measure a GRPO step of a vision-language model: rollout, reward and update, by mmrl and by trl's GRPOTrainer.

    python benchmarks/vlm_step.py            # fails where mmrl takes more than 0.3 times trl's CPU time
    python benchmarks/vlm_step.py --smoke    # seconds: does it still run, and do both do the same work?

Both train all weights of one Qwen3-VL model of 6 M parameters on the same prompts, each a picture of 256 tokens and a
question, 300 tokens in all, with 8 answers of 64 tokens to each; both have one update a rollout, no reference, and the
same reward. They take turns in one process, in alternating order, and the median of their ratios counts. trl reads a
prompt once for each of its answers, when writing and when learning; mmrl reads it once, and keeps one copy of it.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from PIL import Image
from transformers import Qwen3VLForConditionalGeneration, TrainerCallback
from transformers.utils import logging as transformers_logging
from trl import GRPOConfig as TrlConfig
from trl import GRPOTrainer

from mmrl.config.algorithms.policy_gradient import DrGRPOConfig
from mmrl.config.media import MediaConfig
from mmrl.config.policy import ModelPartConfig, VLMConfig
from mmrl.config.sampling import TokenSamplingConfig
from mmrl.config.training import OptimizerConfig, TrainingConfig
from mmrl.data.prompts import PromptSampler
from mmrl.data.sample import Sample
from mmrl.rewards import RewardInput, RewardSuite
from mmrl.rewards.core.registry import reward_factory
from mmrl.training.objectives.policy_gradient import PolicyGradient
from mmrl.training.rollouts.advantage_estimator import AdvantageEstimator
from mmrl.training.rollouts.online import OnlineRollouts
from mmrl.training.run.display import build_display
from mmrl.training.training_loop import TrainingLoop
from mmrl.understanding.vlm import describe
from mmrl.understanding.vlm_policy import VLMPolicy
from mmrl_shapeworld import vlm_model as shapes

BOUND = 0.3
LETTER = "e"


@dataclass(frozen=True)
class Work:
    """The sizes of one step."""

    prompts: int
    answers: int  # to each prompt
    tokens: int  # of each answer
    side: int  # pixels of a picture: (side / 14)^2 tokens
    words: int  # of a question, after the picture
    width: int
    layers: int
    turns: int


FULL = Work(prompts=2, answers=8, tokens=64, side=224, words=36, width=256, layers=6, turns=9)
SMOKE = Work(prompts=2, answers=4, tokens=8, side=56, words=10, width=96, layers=2, turns=2)


def build(work: Work) -> tuple[Qwen3VLForConditionalGeneration, Any]:
    """The embedded model's classes at another size, with random weights."""
    processor = shapes.processor()
    area = work.side**2
    processor.image_processor.size = {"shortest_edge": area, "longest_edge": area}
    size = shapes.VLMSize(
        width=work.width, layers=work.layers, inner=4 * work.width, vision_width=work.width // 2, side=work.side
    )
    torch.manual_seed(0)
    return shapes.build(processor.tokenizer, size), processor


def pictures(work: Work) -> list[Image.Image]:
    """Return an image of noise for each prompt."""
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (work.side, work.side, 3), np.uint8)) for _ in range(work.prompts)]


def questions(work: Work) -> list[str]:
    """Return a question for each prompt, all of one length."""
    return [
        " ".join(["red", "blue", "green"][(word + n) % 3] for word in range(work.words)) for n in range(work.prompts)
    ]


def letters(texts: list[str]) -> list[float]:
    """The share of an answer's characters that are an e."""
    return [text.count(LETTER) / max(1, len(text)) for text in texts]


EVERYTHING = ModelPartConfig(train=True)
ALL_WEIGHTS = VLMConfig(model="benchmark", train="full", vision=EVERYTHING, connector=EVERYTHING)


class Ours:
    """mmrl's loop, as `mmrl train` runs it, without what it writes."""

    def __init__(self, work: Work, model: Any, processor: Any, folder: Path, config: VLMConfig = ALL_WEIGHTS) -> None:
        known = describe(model.eval(), processor, model.device)
        endless = replace(known, ends=torch.tensor([-1], device=model.device))  # every answer has all of its tokens
        policy = VLMPolicy(endless, config, TokenSamplingConfig(max_new_tokens=work.tokens), MediaConfig())
        samples = []
        for number, (picture, question) in enumerate(zip(pictures(work), questions(work), strict=True)):
            picture.save(path := folder / f"{number}.png")
            samples.append(Sample(id=str(number), prompt=question, images=(str(path),)))
        suite = RewardSuite([(reward_factory(score_letters, "letters")(), 1.0)])
        algorithm = DrGRPOConfig()
        objective = PolicyGradient(policy, algorithm, max_decisions=work.tokens)
        self.source = OnlineRollouts(
            policy=policy,
            sampling_weights=objective.sampling_weights,
            prompts=PromptSampler(samples, work.prompts, seed=0),
            suite=suite,
            advantage_estimator=AdvantageEstimator(algorithm.advantage, suite.weights),
            group_size=work.answers,
            micro_batch=work.prompts * work.answers,
            seed=0,
        )
        self.trainer = TrainingLoop(
            policy=policy,
            objective=objective,
            source=self.source,
            optimizer_config=OptimizerConfig(lr=1e-4),
            config=TrainingConfig(iterations=1000),
            seed=0,
            run=folder,
            trackers=[],
            display=build_display("quiet"),
            precision=config.dtype,
            sampling="tokens",
        )
        self.prompt_tokens = policy._prompt(samples[0], None).length

    def step(self) -> int:
        """Run an iteration and return the number of tokens written."""
        metrics, _ = self.trainer.iterate()
        return round(metrics["length"])


def score_letters(item: RewardInput) -> float:
    """The share of an answer's characters that are an e."""
    return letters([item.text or ""])[0]


class Theirs(TrainerCallback):
    """trl's GRPOTrainer, which calls back after each of its steps."""

    def __init__(
        self,
        work: Work,
        model: Any,
        processor: Any,
        folder: Path,
        after_step: Callable[[], None],
        adapters: Any = None,  # a LoraConfig of peft
        **settings: Any,  # of trl's configuration
    ) -> None:
        self.after_step = after_step
        self.spent, self.lengths, self.prompt_tokens = [], [], 0
        rows = [
            {"prompt": [{"role": "user", "content": question}], "image": picture}
            for question, picture in zip(questions(work), pictures(work), strict=True)
        ]
        self.trainer = GRPOTrainer(
            model=model,
            processing_class=processor,
            reward_funcs=self._reward,
            args=TrlConfig(
                output_dir=str(folder),
                num_generations=work.answers,
                max_completion_length=work.tokens,
                max_steps=work.turns + 1,
                learning_rate=1e-4,
                lr_scheduler_type="constant",
                loss_type="dr_grpo",
                scale_rewards="none",
                beta=0.0,
                report_to=[],
                logging_strategy="no",
                save_strategy="no",
                disable_tqdm=True,
                **{
                    "per_device_train_batch_size": work.prompts * work.answers,
                    "generation_kwargs": {"min_new_tokens": work.tokens},
                    "gradient_checkpointing": False,
                    "bf16": False,
                    "use_cpu": True,
                    **settings,
                },
            ),
            train_dataset=Dataset.from_list(rows * 4),
            callbacks=[self],
            peft_config=adapters,
        )

    def _reward(self, prompts: list[Any], completions: list[Any], completion_ids: list[Any], **_: Any) -> list[float]:
        self.lengths.append(len(completion_ids[0]))
        return letters([turns[0]["content"] for turns in completions])

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the clock."""
        self._started = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop it, and let the other take its turn."""
        self.spent.append(time.process_time() - self._started)
        self.after_step()


def compare(work: Work) -> tuple[list[float], list[float]]:
    """CPU seconds a step of mmrl and of trl, in turns; the first turn of each warms up."""
    model, processor = build(work)
    trl_model = copy.deepcopy(model)
    parameters = sum(p.numel() for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(work, model, processor, Path(folder))
        mine: list[float] = []

        def my_turn() -> None:
            started = time.process_time()
            written = ours.step()
            mine.append(time.process_time() - started)
            assert written == work.tokens, f"mmrl wrote {written} tokens per answer, expected {work.tokens}"

        theirs = Theirs(work, trl_model, processor, Path(folder), my_turn)
        theirs.trainer.train()
    assert set(theirs.lengths) == {work.tokens}, f"trl wrote {theirs.lengths} tokens an answer"
    print(
        f"{parameters / 1e6:.1f} M parameters, {work.prompts} prompts of {ours.prompt_tokens} tokens, "
        f"{work.answers} answers of {work.tokens} tokens to each, {torch.get_num_threads()} thread(s)"
    )
    return mine[1:], theirs.spent[1:]


def main() -> None:
    """Print both times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small, and no bound")
    smoke = parser.parse_args().smoke
    transformers_logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    mine, theirs = compare(SMOKE if smoke else FULL)
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    spread = quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    print(f"mmrl {median(mine):.3f} s, trl {median(theirs):.3f} s of CPU time a step (medians of {len(mine)} turns)")
    print(f"ratio {median(ratios):.3f} (quartiles {spread[0]:.3f} to {spread[2]:.3f}), bound {BOUND}")
    if not smoke and median(ratios) > BOUND:
        raise SystemExit(f"a step costs {median(ratios):.3f} times trl's: more than {BOUND}")


if __name__ == "__main__":
    main()
