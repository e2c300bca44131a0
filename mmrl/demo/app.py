"""The app: a tab for each thing that its checkpoints are good for."""

from __future__ import annotations

from pathlib import Path

import gradio as gr

from mmrl.demo.state import DRAWING, LOOKING, Stage
from mmrl.demo.tab_compare import compare_tab
from mmrl.demo.tab_prompts import prompts_tab
from mmrl.demo.tab_video import video_tab
from mmrl.demo.tab_vlm import vlm_tab
from mmrl.demo.tab_vote import vote_tab

KEPT_S = (300, 1800)
"""How often files of visitors are looked through, and how old they may grow, in seconds."""


def style() -> str:
    """The style sheet of everything that the app writes itself."""
    return Path(__file__).with_name("demo.css").read_text(encoding="utf-8")


def script() -> str:
    """What makes pictures grow and videos play together."""
    return Path(__file__).with_name("demo.js").read_text(encoding="utf-8")


def build_app(stage: Stage) -> gr.Blocks:
    """Nothing is served yet."""
    drawing, looking = stage.names(DRAWING), stage.names(LOOKING)
    with gr.Blocks(title="mmrl demo", analytics_enabled=False, delete_cache=KEPT_S, fill_width=True) as app:
        gr.HTML('<h1 class="mm-title">Checkpoints side by side</h1>')
        with gr.Tabs():
            if drawing:
                with gr.Tab("Compare"):
                    compare_tab(stage, style())
            if looking:
                with gr.Tab("VLM"):
                    vlm_tab(stage)
            if len(stage.votable(DRAWING)) > 1:
                with gr.Tab("Blind vote"):
                    vote_tab(stage, DRAWING)
            if len(stage.votable(LOOKING)) > 1:
                with gr.Tab("Blind vote on answers" if len(stage.votable(DRAWING)) > 1 else "Blind vote"):
                    vote_tab(stage, LOOKING)
            if stage.with_videos() or stage.video_files():
                with gr.Tab("Video"):
                    video_tab(stage)
            with gr.Tab("Prompts"):
                prompts_tab(stage, app)

        def left(request: gr.Request) -> None:
            stage.sessions.forget(request.session_hash)

        app.unload(left)
    return app
