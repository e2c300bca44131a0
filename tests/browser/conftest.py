"""Fixtures: one app on a free port, with runs made in seconds, and a browser that records the pages' requests.

Run with `-m browser`. MMRL_SCREENSHOTS names the folder that pictures of the pages go to; MMRL_CHROMIUM the browser.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.demo.app_process import Started, started
from tests.demo.demo_runs import make_run
from tests.training.fork_server import ForkServer

CHROMIUM = os.environ.get("MMRL_CHROMIUM", "/usr/bin/chromium")
PATIENCE_MS = 60_000
PHONE = {"width": 390, "height": 844}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks everything in this folder; it stays out of a run that does not ask for it."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    config.addinivalue_line("markers", "browser: drives a real browser; run with `-m browser`")
    for item in here:
        item.add_marker("browser")
        for text in ("ignore::ResourceWarning", "ignore:.future.no_silent_downcasting. is deprecated"):
            item.add_marker(pytest.mark.filterwarnings(text))
    if "browser" not in str(config.getoption("-m")):
        config.hook.pytest_deselected(items=here)
        items[:] = [item for item in items if item not in here]


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A generator, a copy of it with a broken checkpoint, a vision-language model and a generator of videos."""
    folder = tmp_path_factory.mktemp("runs")
    drawn = make_run(folder / "draw" / "seed-0", overrides=["data.groups=1", "data.group_size=2"])
    broken = shutil.copytree(drawn, folder / "broken" / "seed-0")
    file = next((broken / "checkpoints" / "step-20").glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:100])
    make_run(folder / "look" / "seed-0", "shapes-vlm", steps=(5,), shake=0.02)
    make_run(folder / "film" / "seed-0", steps=(3,), overrides=video_model(folder / "tiny-wan"))
    return folder


def video_model(folder: Path) -> list[str]:
    """Write a tiny video pipeline with random weights; return the overrides that load it."""
    from tests.generation import tiny_pipelines as tiny

    tiny.build("wan").save_pretrained(folder)
    sampling = "{steps: 3, height: 32, width: 32, num_frames: 5, guidance_scale: 1.0, "
    return [f"policy.model={folder}", f"sampling={sampling}pipeline_args: {{max_sequence_length: 8}}}}"]


@pytest.fixture(scope="session")
def site(runs: Path, fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """The app, as the command starts it."""
    if not Path(CHROMIUM).exists():
        pytest.skip(f"there is no browser at {CHROMIUM}: name one in MMRL_CHROMIUM")
    pytest.importorskip("playwright")
    subjects = [runs / name / "seed-0" for name in ("draw", "look", "film", "broken")]
    with started(fork_server, tmp_path_factory.mktemp("site"), subjects) as app:
        yield app


@pytest.fixture(scope="session")
def chromium(site: Started) -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, site: Started) -> Iterator[Callable[..., Any]]:
    """Opens the app as a new visitor. No page may ask for anything elsewhere, or fail."""
    requested: list[str] = []
    failures: list[str] = []
    contexts = []

    def opened(viewport: dict[str, int] | None = None, tab: str = "") -> Any:
        context = chromium.new_context(viewport=viewport or {"width": 1280, "height": 900}, accept_downloads=True)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requested.append(request.url))
        page.on("websocket", lambda socket: requested.append(socket.url))
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.goto(site.url)
        page.wait_for_selector("#mm-go")
        if tab:
            page.get_by_role("tab", name=tab, exact=True).click()
        return page

    yield opened
    for context in contexts:
        context.close()
    own = (site.url, f"ws://127.0.0.1:{site.port}/", "data:", "blob:")
    assert requested and [url for url in requested if not url.startswith(own)] == []
    assert failures == []


@pytest.fixture(scope="session")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any, str], None]:
    """Keeps a picture of a page."""
    folder = Path(os.environ.get("MMRL_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page: Any, name: str) -> None:
        page.wait_for_timeout(300)
        page.screenshot(path=folder / f"{name}.png", full_page=True)

    return keep
