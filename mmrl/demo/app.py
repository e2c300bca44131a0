"""The app: a tab for each kind of checkpoint, and the server.

The server listens on this machine unless a host is named, serves no files but its own, and requests nothing from
elsewhere.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from mmrl.demo.checkpoint_columns import CheckpointColumns
from mmrl.demo.request_validation import MOST_BYTES, SecurityMiddleware, Uploads, limit_pixels
from mmrl.demo.state import IMAGE_KINDS, VLM_KINDS, AppState
from mmrl.demo.tab_compare import compare_tab
from mmrl.demo.tab_episodes import episodes_tab
from mmrl.demo.tab_prompts import prompts_tab
from mmrl.demo.tab_video import video_tab
from mmrl.demo.tab_vlm import vlm_tab
from mmrl.demo.tab_vote import vote_tab
from mmrl.demo.votes import VoteFile
from mmrl.errors import ConfigError

FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif")
QUEUE = 64  # requests of users that may wait
STYLE = Path(__file__).with_name("demo.css").read_text(encoding="utf-8")
SCRIPT = Path(__file__).with_name("demo.js").read_text(encoding="utf-8")  # enlarges pictures, plays videos together
KEPT_S = (300, 1800)
"""Seconds between two deletions of users' files, and their age from which they are deleted."""


def build_app(state: AppState) -> gr.Blocks:
    """Return the app with all its tabs, not yet served."""
    with gr.Blocks(title="mmrl demo", analytics_enabled=False, delete_cache=KEPT_S, fill_width=True) as app:
        gr.HTML('<h1 class="mm-title">Checkpoints side by side</h1>')
        with gr.Tabs():
            if state.names(IMAGE_KINDS):
                with gr.Tab("Compare"):
                    compare_tab(state, STYLE)
            if state.names(VLM_KINDS):
                with gr.Tab("VLM"):
                    vlm_tab(state)
            if state.columns.in_environment():
                with gr.Tab("Episodes"):
                    episodes_tab(state)
            if len(state.votable(IMAGE_KINDS)) > 1:
                with gr.Tab("Blind vote"):
                    vote_tab(state, IMAGE_KINDS)
            if len(state.votable(VLM_KINDS)) > 1:
                with gr.Tab("Blind vote on answers" if len(state.votable(IMAGE_KINDS)) > 1 else "Blind vote"):
                    vote_tab(state, VLM_KINDS)
            if state.with_videos() or state.video_files():
                with gr.Tab("Video"):
                    video_tab(state)
            with gr.Tab("Prompts"):
                prompts_tab(state, app)
        app.unload(state.sessions.forget)
    return app


@dataclass
class RunningApp:
    """A running server."""

    url: str
    state: AppState
    blocks: gr.Blocks
    folder: Path  # uploads of users, and files generated for them

    def wait(self) -> None:
        """Block until Ctrl-C."""
        self.blocks.block_thread()

    def close(self) -> None:
        """Stop the server and delete the files of users."""
        self.blocks.close(verbose=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def check_port(host: str, port: int) -> None:
    """Raise `ConfigError`, before any model is loaded, if nothing can listen at the port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(found[0], found[1]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(found[4])
    except OSError as err:
        raise ConfigError(f"cannot listen at {host}, port {port}: {err.strerror}; --port chooses another") from None


def serve(subjects: Sequence[str], host: str, port: int, votes: Path | None, open_browser: bool) -> RunningApp:
    """Start the app in background threads. `subjects` are runs or checkpoints: RUN, RUN@40, RUN@best.

    `votes` is the file of preference pairs; None: in the folder `votes` of the first run.

    Raises:
        ConfigError: a subject is no run, or has no such checkpoint, or nothing can listen at the port.
    """
    check_port(host, port)
    columns = CheckpointColumns(subjects)
    folder = Path(tempfile.mkdtemp(prefix=f"mmrl-demo-{os.getpid()}-"))
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    limit_pixels()
    first = next(iter(columns.runs.values()))
    state = AppState(columns, VoteFile(votes or first / "votes" / "votes.jsonl"), Uploads(folder))
    blocks = build_app(state)
    blocks.queue(api_open=False, max_size=QUEUE)
    security: Any = Middleware(SecurityMiddleware, uploads=folder, host=host)
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
            css=STYLE,
            head=f"<script>{SCRIPT}</script>",
            app_kwargs={"middleware": [security], "docs_url": None, "redoc_url": None, "openapi_url": None},
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return RunningApp(url, state, blocks, folder)
