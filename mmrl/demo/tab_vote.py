"""The tab that asks which of two anonymous answers is better."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import gradio as gr

from mmrl.demo.error_handling import DemoError, guarded
from mmrl.demo.generate import Made, Settings, ask
from mmrl.demo.grid_html import media_html
from mmrl.demo.jobs import Job
from mmrl.demo.request_validation import MOST_COLUMNS, MOST_SEED, prompt_text
from mmrl.demo.state import Kinds, Stage, asked_by
from mmrl.demo.votes import Ballot, checked_verdict, pick_pair
from mmrl.evaluation.image_grid import prompt_image
from mmrl.evaluation.report.page import picture, shortened

EMPTY = '<p class="mm-empty">Press New pair: two checkpoints answer one prompt from the same noise, unnamed.</p>'
BUTTONS = (("Left is better", "left"), ("Right is better", "right"), ("Tie", "tie"), ("Both bad", "both_bad"))
TRIES = 3
"""Seeds that are tried where both answers come out the same."""


def vote_tab(stage: Stage, kinds: Kinds) -> None:
    """Build it, inside of a tab."""
    names = stage.votable(kinds)
    with gr.Row():
        columns = gr.CheckboxGroup(
            names,
            value=[name for name in names if name in stage.columns.chosen],
            label="Checkpoints in the vote",
            elem_id="mm-voters",
        )
        prompt = gr.Textbox("", label="Prompt", info="Empty: one of the run's, at random.", lines=2)
    new = gr.Button("New pair", variant="primary", elem_id="mm-new-pair")
    pair = gr.HTML(EMPTY, elem_id="mm-ballot")
    ids = {"left": "mm-better-left", "right": "mm-better-right", "tie": "mm-tie", "both_bad": "mm-both_bad"}
    with gr.Row(elem_classes="mm-votes"):
        buttons = [gr.Button(label, interactive=False, min_width=120, elem_id=ids[v]) for label, v in BUTTONS]
    result = gr.HTML(lambda: _tally(stage), elem_id="mm-vote-result")
    chance = random.SystemRandom()

    @guarded
    def take(chosen: Any, text: Any, request: gr.Request) -> Iterator[Any]:
        session = stage.sessions.of(request.session_hash)
        session.ballot = None
        ballot_job = _ballot_job(stage, kinds, chosen, text, chance)
        stage.pair_rate.take(session.rater)
        yield {pair: '<p class="mm-doing" role="status">Two checkpoints answer …</p>', **_able(buttons, False)}
        for ballot in session.start(ballot_job).news():
            session.ballot = ballot
            yield {pair: ballot_html(ballot, stage), **_able(buttons, True)}

    def voter(verdict: str) -> Callable[..., Any]:
        @guarded
        def vote(request: gr.Request) -> Any:
            session = stage.sessions.of(request.session_hash)
            ballot, chosen = session.ballot, checked_verdict(verdict)
            if ballot is None:
                raise DemoError("There is nothing to vote on: take a new pair.")
            stage.vote_rate.take(session.rater)
            paired = stage.votes.add(ballot, chosen, session.rater)
            session.ballot = None
            kept = "Kept as a preference pair." if paired else "Kept beside the pairs: it prefers neither."
            left, right = map(escape, ballot.names)
            told = f'<p role="status">{kept} Left was <b>{left}</b>, right <b>{right}</b>.</p>'
            return {result: told + _tally(stage), **_able(buttons, False)}

        return vote

    new.click(
        take, [columns, prompt], [pair, *buttons], concurrency_limit=8, show_progress="hidden", api_visibility="private"
    )
    for button, (_, verdict) in zip(buttons, BUTTONS, strict=True):
        button.click(voter(verdict), None, [result, *buttons], show_progress="hidden", api_visibility="private")


def _ballot_job(stage: Stage, kinds: Kinds, names: Any, text: Any, chance: random.Random) -> Job[Ballot]:
    """A job whose one report is a ballot.

    Raises:
        DemoError: there is nothing to compare, or the prompt is too long.
    """
    known = stage.votable(kinds)
    if not isinstance(names, list) or not set(names) <= set(known) or len(names) > MOST_COLUMNS:
        raise DemoError(f"Choose 2 to {MOST_COLUMNS} of the checkpoints here.")
    left, right = pick_pair(names, chance)
    samples = stage.samples(kinds)
    if isinstance(text, str) and text.strip():
        sample = stage.sample(kinds, None, prompt_text(text))
    else:
        sample = chance.choice(samples)

    def work(job: Job[Ballot]) -> None:
        made: list[Made] = []
        seed = 0
        for _ in range(TRIES):
            seed = chance.randrange(MOST_SEED)
            made = [
                ask(stage.columns.lineup, stage.columns.usable(name), sample, Settings(seed), job)
                for name in (left, right)
            ]
            if not _same(made[0].media[0], made[1].media[0]):
                break
        job.report(Ballot(sample, seed, (left, right), (made[0].media[0], made[1].media[0])))

    return Job(work)


def ballot_html(ballot: Ballot, stage: Stage) -> str:
    """Both answers without anything that says whose they are."""
    shown = ""
    if ballot.sample.images or ballot.sample.videos:
        from mmrl.data.media.budget import MediaBudget
        from mmrl.data.media.reader import MediaReader

        seen = prompt_image(ballot.sample, MediaReader(MediaBudget()))
        shown = f'<div class="mm-shown">{picture(seen, "what was asked about")}</div>' if seen else ""
    sides = "".join(
        f"<figure><figcaption>{side}</figcaption>{media_html(media, side)}</figure>"
        for side, media in zip(("Left", "Right"), ballot.media, strict=True)
    )
    prompt = escape(shortened(asked_by(ballot.sample), 1200))
    return f'<p class="mm-prompt">{prompt}</p>{shown}<div class="mm-ballot">{sides}</div>'


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str | list):
        return bool(one == other)
    return one.size == other.size and one.tobytes() == other.tobytes()


def _able(buttons: list[gr.Button], able: bool) -> dict[Any, Any]:
    return {button: gr.Button(interactive=able) for button in buttons}


def _tally(stage: Stage) -> str:
    pairs, undecided = stage.votes.count()
    return (
        f'<p class="mm-soft">{pairs} preference pairs in {escape(stage.votes.path.name)}; '
        f"{undecided} ties and both-bad. "
        "Train on the pairs with algorithm.name=dpo.</p>"
    )
