"""The tab Blind vote: which of two anonymous answers is better."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from html import escape
from typing import Any

import gradio as gr

from mmrl.data.media.budget import MediaBudget
from mmrl.data.media.reader import MediaReader
from mmrl.demo.error_handling import DemoError, with_error_messages
from mmrl.demo.generate import GeneratedAnswers, GenerationSettings, generate
from mmrl.demo.grid import media_html
from mmrl.demo.jobs import StoppableJob
from mmrl.demo.request_validation import MOST_COLUMNS, MOST_SEED, prompt_text
from mmrl.demo.state import AppState, Kinds, question_of
from mmrl.demo.votes import Ballot, pick_pair, validate_verdict
from mmrl.evaluation.image_grid import prompt_image
from mmrl.evaluation.report.page import picture, shortened

EMPTY = '<p class="mm-empty">Press New pair: two checkpoints answer one prompt from the same noise, unnamed.</p>'
BUTTONS = (("Left is better", "left"), ("Right is better", "right"), ("Tie", "tie"), ("Both bad", "both_bad"))
TRIES = 3
"""Seeds that are tried while both answers are equal."""


def vote_tab(state: AppState, kinds: Kinds) -> None:
    """Build the tab."""
    names = state.votable(kinds)
    with gr.Row():
        chosen = [name for name in names if name in state.columns.chosen]
        columns = gr.CheckboxGroup(names, value=chosen, label="Checkpoints in the vote", elem_id="mm-voters")
        prompt = gr.Textbox("", label="Prompt", info="Empty: one of the run's, at random.", lines=2)
    new = gr.Button("New pair", variant="primary", elem_id="mm-new-pair")
    pair = gr.HTML(EMPTY, elem_id="mm-ballot")
    ids = {"left": "mm-better-left", "right": "mm-better-right", "tie": "mm-tie", "both_bad": "mm-both_bad"}
    with gr.Row(elem_classes="mm-votes"):
        buttons = [gr.Button(label, interactive=False, min_width=120, elem_id=ids[v]) for label, v in BUTTONS]
    result = gr.HTML(lambda: _tally(state), elem_id="mm-vote-result")
    chance = random.SystemRandom()

    @with_error_messages
    def on_new_pair(chosen: Any, text: Any, request: gr.Request) -> Iterator[Any]:
        session = state.sessions.of(request)
        session.ballot = None
        ballot_job = _ballot_job(state, kinds, chosen, text, chance)
        state.pair_rate.take(session.rater)
        yield {pair: '<p class="mm-doing" role="status">Two checkpoints answer …</p>', **_able(buttons, False)}
        for ballot in session.start(ballot_job).reports():
            session.ballot = ballot
            yield {pair: ballot_html(ballot, state), **_able(buttons, True)}

    def on_vote(verdict: str) -> Callable[..., Any]:
        @with_error_messages
        def vote(request: gr.Request) -> Any:
            session = state.sessions.of(request)
            ballot, chosen = session.ballot, validate_verdict(verdict)
            if ballot is None:
                raise DemoError("There is nothing to vote on: take a new pair.")
            state.vote_rate.take(session.rater)
            paired = state.votes.add(ballot, chosen, session.rater)
            session.ballot = None
            kept = "Kept as a preference pair." if paired else "Kept beside the pairs: it prefers neither."
            left, right = map(escape, ballot.names)
            notice = f'<p role="status">{kept} Left was <b>{left}</b>, right <b>{right}</b>.</p>'
            return {result: notice + _tally(state), **_able(buttons, False)}

        return vote

    private: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    new.click(on_new_pair, [columns, prompt], [pair, *buttons], concurrency_limit=8, **private)
    for button, (_, verdict) in zip(buttons, BUTTONS, strict=True):
        button.click(on_vote(verdict), None, [result, *buttons], **private)


def _ballot_job(state: AppState, kinds: Kinds, names: Any, text: Any, chance: random.Random) -> StoppableJob[Ballot]:
    """Return a job whose only report is a ballot.

    Raises:
        DemoError: there is nothing to compare, or the prompt is too long.
    """
    known = state.votable(kinds)
    if not isinstance(names, list) or not set(names) <= set(known) or len(names) > MOST_COLUMNS:
        raise DemoError(f"Choose 2 to {MOST_COLUMNS} of the checkpoints here.")
    left, right = pick_pair(names, chance)
    samples = state.samples(kinds)
    is_own = isinstance(text, str) and text.strip()
    sample = state.sample(kinds, None, prompt_text(text)) if is_own else chance.choice(samples)

    def work(job: StoppableJob[Ballot]) -> Iterator[Ballot]:
        generated: list[GeneratedAnswers] = []
        seed = 0
        for _ in range(TRIES):
            seed = chance.randrange(MOST_SEED)
            generated = [
                generate(state.columns.pool, state.columns.usable(name), sample, GenerationSettings(seed), job)
                for name in (left, right)
            ]
            if not _same(generated[0].media[0], generated[1].media[0]):
                break
        yield Ballot(sample, seed, (left, right), (generated[0].media[0], generated[1].media[0]))

    return StoppableJob(work)


def ballot_html(ballot: Ballot, state: AppState) -> str:
    """Return both answers, without the names of the checkpoints."""
    image = prompt_image(ballot.sample, MediaReader(MediaBudget()))
    context = f'<div class="mm-shown">{picture(image, "picture in the prompt")}</div>' if image else ""
    sides = "".join(
        f"<figure><figcaption>{side}</figcaption>{media_html(media, side)}</figure>"
        for side, media in zip(("Left", "Right"), ballot.media, strict=True)
    )
    prompt = escape(shortened(question_of(ballot.sample), 1200))
    return f'<p class="mm-prompt">{prompt}</p>{context}<div class="mm-ballot">{sides}</div>'


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str | list):
        return bool(one == other)
    return one.size == other.size and one.tobytes() == other.tobytes()


def _able(buttons: list[gr.Button], able: bool) -> dict[Any, Any]:
    return {button: gr.Button(interactive=able) for button in buttons}


def _tally(state: AppState) -> str:
    pairs, undecided = state.votes.count()
    kept = f"{pairs} preference pairs in {escape(state.votes.path.name)}; {undecided} ties and both-bad."
    return f'<p class="mm-soft">{kept} Train on the pairs with algorithm.name=dpo.</p>'
