"""The app: a tab for each thing that its checkpoints are good for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from mmrl.demo.checkpoint_columns import Columns
from mmrl.demo.request_validation import MOST_BYTES, Uploads, limit_pixels
from mmrl.demo.security_middleware import Guard
from mmrl.demo.state import DRAWING, LOOKING, Stage
from mmrl.demo.tab_compare import compare_tab
from mmrl.demo.tab_prompts import prompts_tab
from mmrl.demo.tab_video import video_tab
from mmrl.demo.tab_vlm import vlm_tab
from mmrl.demo.tab_vote import vote_tab
from mmrl.demo.votes import VoteFile

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


# The server: on this machine alone unless told otherwise, serving no file but its own, asking nobody anything.


os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported, which may read it once


FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
QUEUE = 64  # visitors' requests that may wait


@dataclass
class Served:
    """A server that runs."""

    url: str
    stage: Stage
    blocks: gr.Blocks
    folder: Path  # what visitors sent, and what was made for them

    def wait(self) -> None:
        """Until somebody presses Ctrl-C."""
        self.blocks.block_thread()

    def close(self) -> None:
        """Stop, and delete what visitors sent."""
        self.blocks.close(verbose=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def serve(subjects: Sequence[str], host: str, port: int, votes: Path | None, open_browser: bool) -> Served:
    """Start the app of some subjects, in threads of its own.

    `votes` is where preference pairs go; None: into the folder `votes` of the first run.

    Raises:
        ConfigError: a subject is no run, or has no such checkpoint.
        OSError: the port is taken.
    """
    columns = Columns(subjects)
    folder = Path(tempfile.mkdtemp(prefix=f"mmrl-demo-{os.getpid()}-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    limit_pixels()
    first = next(iter(columns.runs.values()))
    stage = Stage(columns, VoteFile(votes or first / "votes" / "votes.jsonl"), Uploads(folder))
    blocks = build_app(stage)
    blocks.queue(api_open=False, max_size=QUEUE)
    guard: Any = Middleware(Guard, uploads=folder, host=host)
    try:
        _, url, _ = blocks.launch(
            server_name=host,
            server_port=port,
            share=False,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            show_error=False,
            allowed_paths=[],
            max_file_size=MOST_BYTES,
            strict_cors=True,
            enable_monitoring=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            footer_links=[],
            theme=gr.themes.Default(font=FONT, font_mono=("ui-monospace", "Menlo", "Consolas", "monospace")),
            css=style(),
            head=f"<script>{script()}</script>",
            app_kwargs={"middleware": [guard], "docs_url": None, "redoc_url": None, "openapi_url": None},
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Served(url, stage, blocks, folder)
