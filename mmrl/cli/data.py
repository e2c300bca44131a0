"""`mmrl data`: each function below is the command of its name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mmrl.cli.output_file import output_argument, output_option
from mmrl.cli.recipe_overrides import Overrides
from mmrl.cli.reward_settings import RewardArgs, reward_settings, weighted_rewards

if TYPE_CHECKING:
    from rich.table import Table

    from mmrl.config.media import MediaConfig
    from mmrl.config.train import TrainConfig
    from mmrl.environments.traces.trace_folder import Trace
    from mmrl.understanding.tasks.check_data import Report

app = typer.Typer(
    help="Data sets: what is wrong with one, media made ready, recorded traces, and prompts worth training on.",
    no_args_is_help=True,
)


Source = Annotated[
    str, typer.Argument(metavar="FILE", help="JSON Lines, Parquet, a folder of `save_to_disk`, or hf:owner/name:split.")
]


@app.command()
def check(
    file: Source,
    media: Annotated[
        bool, typer.Option("--media/--no-media", help="Decode every picture and video to its end.")
    ] = True,
    task: Annotated[
        str | None, typer.Option(metavar="TASK", help="The task of lines that name none, as `mmrl train TASK` has it.")
    ] = None,
) -> None:
    """Find every bad line: keys, types, media, boxes, and answers that their own reward cannot use."""
    from mmrl.cli.console import console
    from mmrl.data.sources import locate
    from mmrl.understanding.tasks.check_data import check_data

    with console().status(f"checking {file}"):
        report = check_data(file, media, task)
    for problem in report.problems:
        typer.echo(f"{locate(file, problem.number)}: {problem.text}")
    console().print(_summary(report))
    for reward, count in sorted(report.not_scored.items()):
        typer.echo(f"{reward}: not tried on {count} answers, since it needs a model, a judge or code of your own")
    if not report.lines:
        typer.echo(f"{file}: holds no samples")
    if report.problems or not report.lines:
        raise typer.Exit(1)


@app.command()
def prepare(
    file: Source,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the prepared media go.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="media.a.b=c", help="The budget, as in training: media.video.fps=1", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="Take the budget from a recipe, task or YAML file.")
    ] = None,
) -> None:
    """Decode, sample and resize all pictures and videos once, for training with media.cache=DIR."""
    import time

    from mmrl.cli.console import progress_bar
    from mmrl.data.media.budget import MediaBudget
    from mmrl.data.media.reader import write_cache
    from mmrl.data.sources import load_source

    settings = _media(overrides or [], recipe)
    samples = load_source(file)
    started = time.perf_counter()
    with progress_bar("preparing") as update:
        done = write_cache(samples, out, MediaBudget.of(settings), update)
    for problem in done.problems:
        typer.echo(problem)
    typer.echo(
        f"{out}: {done.made} media prepared, {done.kept} were there, {len(done.problems)} cannot be decoded; "
        f"{done.bytes / 1e6:.1f} MB, {time.perf_counter() - started:.1f} s"
    )
    changed = [f" {text}" for text in overrides or []]
    typer.echo(f"Train with media.cache={out}{''.join(changed)}")
    if done.problems and settings.on_error == "fail":
        typer.echo("Samples with media that cannot be decoded are left out with media.on_error=exclude.")
        raise typer.Exit(1)


@app.command()
def traces(
    kind: Annotated[
        str,
        typer.Argument(metavar="FORMAT", help="android_control, mind2web, or an environment with scripted annotators."),
    ],
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="The file or folder as published; for an environment, its samples.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder that gets traces.jsonl and the screens.")],
    annotator: Annotated[
        str, typer.Option(metavar="NAME", help="Of an environment: the annotator that acts, such as careless.")
    ] = "expert",
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The largest number of traces.")] = None,
) -> None:
    """Write recorded traces on screens as samples of the environment `recorded`."""
    from itertools import islice

    from mmrl.environments.traces.android_control import read_android_control
    from mmrl.environments.traces.mind2web import read_mind2web
    from mmrl.environments.traces.trace_folder import left_out, write_traces

    published = {"android_control": read_android_control, "mind2web": read_mind2web}
    if kind in published:
        found = left_out(published[kind](Path(source)), Path(source))
    else:
        found = iter(_played(kind, source, annotator))
    count = write_traces(islice(found, limit), out)
    typer.echo(f"{out}: {count} traces")
    typer.echo(f"Train with environment.name=recorded data.path={out}/traces.jsonl")


@app.command()
def pivots(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="With the policy, the environment and data.path.")],
    out: Annotated[Path, output_argument("The JSON Lines file of the steps that are kept.")],
    overrides: Overrides = None,
    below: Annotated[
        float, typer.Option(metavar="RATE", help="Keep steps at which fewer than this share of the actions count.")
    ] = 1.0,
) -> None:
    """Keep the steps of recorded traces at which some actions of a policy count and some do not."""
    from mmrl.cli.console import progress_bar
    from mmrl.config import load_config
    from mmrl.workflows.select_pivots import measure_steps, write_pivots

    config = load_config(recipe, overrides or [])
    with progress_bar("acting") as update:
        measured = measure_steps(config, update)
    kept = measured.pivots(below)
    write_pivots(kept, out)
    rates = measured.rates
    never, always = rates.count(0.0), rates.count(1.0)
    typer.echo(f"{out}: {len(kept)} of {len(rates)} steps; at {never} no action counts, at {always} all do")


@app.command()
def progress(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="With the policy, the environment and data.path.")],
    out: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of the estimator.")],
    overrides: Overrides = None,
    key: Annotated[str, typer.Option(metavar="KEY", help="Of the outcome that contributions sum to.")] = "success",
) -> None:
    """Let a policy play, and learn what each turn contributes to the outcome (environment `attributed`)."""
    from mmrl.cli.console import progress_bar
    from mmrl.config import load_config
    from mmrl.rewards.learned.progress_estimator import write_estimator
    from mmrl.workflows.estimate_progress import estimate_progress

    config = load_config(recipe, overrides or [])
    with progress_bar("playing") as update:
        found = estimate_progress(config, key, update)
    measured = {"episodes": found.episodes, "outcome": round(found.success, 4), "explained": round(found.explained, 4)}
    write_estimator(out, found.estimator, measured)
    typer.echo(
        f"{out}: {found.episodes} episodes with a mean {key} of {found.success:.3f}; contributions explain "
        f"{found.explained:.2f} of its variance in held-out ones"
    )


@app.command()
def demonstrate(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="With the policy, the environment and data.path.")],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, output_option("The samples that were solved, as JSON Lines.")],
    key: Annotated[str, typer.Option(metavar="KEY", help="Of the outcome: an episode with 1 is kept.")] = "success",
) -> None:
    """Let a policy play, and keep the episodes that were a success as demonstrations to imitate."""
    from mmrl.cli.console import progress_bar
    from mmrl.config import load_config
    from mmrl.data.sources import write_source
    from mmrl.workflows.make_demonstrations import make_demonstrations

    config = load_config(recipe, overrides or [])
    with progress_bar("playing") as update:
        made = make_demonstrations(config, key, update)
    write_source(made.samples, out)
    typer.echo(f"{out}: {len(made.samples)} of {made.prompts} samples; {made.success:.3f} of all episodes succeeded")
    typer.echo(f"Imitate them with algorithm.name=sft data.path={out}")


def _played(kind: str, source: str, annotator: str) -> Iterator[Trace]:
    """Yield the traces of a scripted annotator in an environment."""
    from mmrl.build.datasets import load_samples
    from mmrl.environments import available_environments
    from mmrl.environments.environment_registry import load_environment
    from mmrl.environments.traces.trace_folder import trace_of
    from mmrl.errors import ConfigError

    environment = load_environment(kind)
    record, names = getattr(environment, "record", None), getattr(environment, "annotators", ())
    if record is None or annotator not in names:
        known = ", ".join(names) or f"none; environments are {', '.join(available_environments())}"
        raise ConfigError(f"{kind}: there is no scripted annotator {annotator!r}: there are {known}")
    for number, sample in enumerate(load_samples(source)):
        yield trace_of(record(sample, annotator, number))


@app.command("filter")
def filter_(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="The run to filter for: its policy, data.path and rewards.")
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, output_option("The prompts that stay, as JSON Lines.")],
    answers: Annotated[int, typer.Option(min=1, help="Answers to each prompt.")] = 16,
    success: Annotated[float, typer.Option(help="An answer is good if its total reward is at least this.")] = 1.0,
    above: Annotated[float, typer.Option(help="Keep prompts with more than this share of good answers.")] = 0.0,
    below: Annotated[float, typer.Option(help="Keep prompts with less than this share of good answers.")] = 1.0,
) -> None:
    """Keep the prompts that a policy solves sometimes, before it is trained: neither never nor always."""
    from mmrl.cli.console import console
    from mmrl.data.sources import write_source
    from mmrl.workflows.prompt_filter import filter_prompts

    config = _checked(recipe, overrides)
    with console().status(f"answering {config.data.path}"):
        found = filter_prompts(config, answers, success, above, below)
    write_source(found.kept, out)
    typer.echo(
        f"{out}: {len(found.kept)} of {len(found.rates)} prompts stay; {found.never} are solved too rarely, "
        f"{found.always} too often, and {found.unscored} could not be scored"
    )
    typer.echo(f"Train with data.path={out}")


@app.command()
def select(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="The run to choose for: its policy, data.path and rewards.")
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, output_option("The prompts that stay, as JSON Lines.")],
    answers: Annotated[int, typer.Option(min=2, help="Answers to each prompt.")] = 8,
    share: Annotated[float, typer.Option(help="Of the prompts that stay.")] = 0.3,
) -> None:
    """Keep the prompts whose answers differ most in reward, before a policy is trained."""
    from mmrl.cli.console import console
    from mmrl.data.sources import write_source
    from mmrl.workflows.prompt_variance import varied_prompts

    config = _checked(recipe, overrides)
    with console().status(f"answering {config.data.path}"):
        found = varied_prompts(config, answers, share)
    write_source(found.kept, out)
    typer.echo(
        f"{out}: {len(found.kept)} of {len(found.variances)} prompts stay, those with the largest variance of rewards; "
        f"{sum(not each > 0 for each in found.variances.values())} have none"
    )
    typer.echo(f"Train with data.path={out}")


@app.command()
def pairs(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="The run whose policy answers, with data.path and rewards.")
    ],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, output_option("The pairs, as JSON Lines.")],
    answers: Annotated[int, typer.Option(min=2, help="Answers to each prompt.")] = 32,
    most: Annotated[int, typer.Option(min=1, help="Pairs of one prompt, at most.")] = 15,
    success: Annotated[float, typer.Option(help="An answer is right if its total reward is at least this.")] = 1.0,
    online: Annotated[
        Path | None, output_option("Also write the prompts of medium difficulty by these answers.")
    ] = None,
    above: Annotated[float, typer.Option(help="Medium: more than this share of right answers.")] = 0.2,
    below: Annotated[float, typer.Option(help="Medium: less than this share of right answers.")] = 0.8,
) -> None:
    """Pair a policy's right answers with its wrong ones to the same prompt, for mpo or dpo."""
    from mmrl.cli.console import console
    from mmrl.config import ConfigError
    from mmrl.data.sources import write_source
    from mmrl.workflows.prompt_filter import check_bounds, solved_sometimes
    from mmrl.workflows.sampled_pairs import sampled_pairs

    if online is not None and online.resolve() == out.resolve():
        raise ConfigError(f"--online: {online} is the file of the pairs (--out), which it would replace: name another")
    config = _checked(recipe, overrides)
    check_bounds(above, below)
    with console().status(f"answering {config.data.path}"):
        found = sampled_pairs(config, answers, most, success)
    write_source(found.pairs, out)
    typer.echo(f"{out}: {len(found.pairs)} pairs of {found.paired} of {len(found.answered.samples)} prompts")
    typer.echo(f"Train with algorithm.name=mpo data.path={out}")
    if online is not None:
        medium = solved_sometimes(config, found.answered, success, above, below)
        write_source(medium.kept, online)
        typer.echo(
            f"{online}: {len(medium.kept)} prompts, of which {medium.never} are too hard, {medium.always} too easy"
        )
        typer.echo(f"Go on with algorithm.name=gspo data.path={online}")


def _checked(recipe: str, overrides: list[str] | None) -> TrainConfig:
    """Return a recipe that could be trained: its prompts are answered as in training."""
    from mmrl.build.config_checks import check as check_config
    from mmrl.config import load_config

    config = load_config(recipe, overrides or [])
    check_config(config)
    return config


@app.command()
def align(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A run that was evaluated several times on the prompts to choose from."),
    ],
    *,
    out: Annotated[Path, output_option("The prompts that stay, as JSON Lines.")],
    share: Annotated[float, typer.Option(help="Of the prompts that stay.")] = 0.16,
) -> None:
    """Keep the prompts whose rewards rose during a run as those of all prompts did."""
    from mmrl.data.sources import write_source
    from mmrl.workflows.learning_curves import aligned_prompts

    found = aligned_prompts(run, share)
    write_source(found.kept, out)
    typer.echo(f"{out}: {len(found.kept)} of {len(found.scores)} prompts stay, the nearest to the mean learning curve")
    typer.echo(f"Train with data.path={out}")


@app.command()
def angles(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="With the policy and data.path.")],
    overrides: Overrides = None,
    *,
    out: Annotated[Path, output_option("The samples with their angles, as JSON Lines.")],
) -> None:
    """Measure how nearly a model's hidden states of each prompt point one way, to rank prompts by it."""
    from mmrl.cli.console import progress_bar
    from mmrl.config import load_config
    from mmrl.data.angle_prompts import ANGLE
    from mmrl.data.sources import write_source
    from mmrl.workflows.prompt_angles import with_angles

    config = load_config(recipe, overrides or [])
    with progress_bar("reading") as update:
        found = with_angles(config, update)
    write_source(found, out)
    measured = sorted(sample.metadata[ANGLE] for sample in found)
    typer.echo(
        f"{out}: {len(found)} samples, angle concentration from {measured[0]:.3f} to {measured[-1]:.3f}, "
        f"median {measured[len(measured) // 2]:.3f}"
    )
    typer.echo(f"Train with data.prompts.name=angle_concentration data.path={out}")


@app.command()
def mixture(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs with other weights in data.prompts.weights, evaluated alike."),
    ],
    *,
    out: Annotated[Path, output_option("The weights, the fit and its runs, as YAML.")],
    metric: Annotated[str, typer.Option(metavar="NAME", help="A reward of the last evaluation.")] = "total",
    on: Annotated[str, typer.Option(metavar="SPLIT", help="validation, heldout or greedy.")] = "validation",
    source: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only evaluated samples from this source; repeatable.")
    ] = None,
    ridge: Annotated[
        float | None,
        typer.Option(metavar="X", help="Penalty of the fit.", show_default="that of the least leave-one-out error"),
    ] = None,
) -> None:
    """Predict the outcome of training from the weights of its sources, and write the weights of the best one."""
    from mmrl.workflows.predicted_mixture import predicted_mixture

    found = predicted_mixture(runs, metric, on=on, sources=source or (), ridge=ridge)
    found.write(out)
    best = max(found.outcomes)
    weights = ", ".join(f"{name}: {weight:.4g}" for name, weight in found.table()["weights"].items())
    typer.echo(
        f"{out}: {metric} {found.predicted:.3f} is predicted with the best weights and {found.even:.3f} with equal "
        f"ones; the best of {len(found.runs)} runs has {best:.3f}"
    )
    typer.echo(
        f"Each run predicted from the others: error {found.fit.error:.4f} (penalty {found.fit.ridge:.3g}), and "
        f"{found.fit.spread:.4f} by their mean"
    )
    typer.echo(f"Train with 'data.prompts={{name: mixture, weights: {{{weights}}}}}'")


@app.command()
def direct(
    file: Source,
    *,
    reward: Annotated[
        list[str],
        typer.Option("--reward", "-r", metavar="REWARD[=FACTOR]", help="One of two rewards; a factor scales it."),
    ],
    arg: RewardArgs = None,
    angles: Annotated[int, typer.Option(min=2, help="Directions, from the first reward to the second.")] = 7,
    text: Annotated[
        str | None, typer.Option(help="What is put before a prompt; {names} and {values} are filled in.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice of directions.")] = 0,
    out: Annotated[Path, output_option("The samples with directions, as JSON Lines.")],
) -> None:
    """Put into each prompt how much each of two rewards counts, and weight the sample's rewards by it."""
    from mmrl.data.directions import TEXT, directed_samples
    from mmrl.data.sample import RewardChoice
    from mmrl.data.sources import load_source, write_source

    factors = weighted_rewards(reward, "--reward", unset=1.0)
    settings = reward_settings([*factors], arg or [])
    rewards = [RewardChoice(name, factor, settings[name]) for name, factor in factors.items()]
    directed = directed_samples(load_source(file), rewards, angles, text or TEXT, seed)
    write_source(directed, out)
    typer.echo(f"{out}: {len(directed)} samples in {angles} directions of {' and '.join(factors)}")
    typer.echo(f"Train with data.path={out}, as by algorithm.name=rejection_sft")


@app.command()
def judge(
    file: Source,
    out: Annotated[Path, output_option("The questions, as JSON Lines.")],
    question: Annotated[
        str, typer.Option(metavar="TEXT", help="The question, with {prompt} for the pair's prompt.")
    ] = "",
) -> None:
    """Turn pairs (prompt, chosen, rejected) into questions for a judge, each pair in both orders."""
    from mmrl.build.datasets import load_samples
    from mmrl.data.judged_pairs import QUESTION, judged_pairs
    from mmrl.data.sources import write_source

    found = judged_pairs(load_samples(file), question or QUESTION)
    write_source(found, out)
    typer.echo(f"{out}: {len(found)} questions about {len(found) // 2} pairs, in both orders")
    typer.echo(f"Train with mmrl train judging data.path={out}")


def _media(overrides: list[str], recipe: str | None) -> MediaConfig:
    """Return the section `media` of a recipe, or its defaults, with the overrides applied."""
    from mmrl.config import ConfigError, load_config
    from mmrl.config.loading.load import parse_config

    if odd := [text for text in overrides if not text.startswith("media.")]:
        raise ConfigError(f"{odd[0]}: only keys of media can be set here, as media.video.max_frames=16")
    if recipe is not None:
        return load_config(recipe, [*overrides, "data.path=unused"]).media
    bare = "{name: media, policy: {kind: vlm, model: unused}, data: {path: unused}, sampling: {kind: tokens}}"
    return parse_config(bare, "media", overrides).media


def _summary(report: Report) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None)
    table.add_column("source")
    table.add_column("task")
    for head in ("lines", "bad", "pictures", "videos", "answers", "scored in full"):
        table.add_column(head, justify="right")
    for (source, task), tally in sorted(report.tallies.items()):
        numbers = (tally.lines, tally.bad, tally.pictures, tally.videos, tally.answers, tally.scored)
        table.add_row(Text(source or "(unread)"), Text(task or "-"), *map(str, numbers))
    return table
