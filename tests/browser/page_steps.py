"""The actions of a visitor, as steps that tests are made of."""

from __future__ import annotations

from typing import Any

GRID_IMAGES = "#mm-grid td figure img"


def tick(page: Any, *names: str) -> None:
    """Just these checkpoints of the Compare tab."""
    for label in page.locator("#mm-columns label:has(input[type=checkbox])").all():
        label.locator("input").set_checked(label.inner_text().strip() in names)


def set_up(page: Any, *names: str, group: int = 2, seed: int = 3, steps: int = 3, guidance: str = "") -> None:
    """Everything that Go looks at."""
    tick(page, *names)
    for field, value in (("seed", seed), ("group", group), ("steps", steps)):
        box = page.locator(f"#mm-{field} input[type=number]")
        box.fill(str(value))
        box.press("Tab")
    page.locator("#mm-guidance").locator("input, textarea").fill(guidance)


def go(page: Any, pictures: int) -> list[str]:
    """Press Go, wait for `pictures` images and return their sources."""
    page.evaluate("document.querySelectorAll('#mm-grid figure').forEach((figure) => figure.remove())")
    page.click("#mm-go")
    page.wait_for_selector(f"{GRID_IMAGES} >> nth={pictures - 1}")
    page.wait_for_selector("#mm-grid .mm-doing", state="detached")
    return [str(image.get_attribute("src")) for image in page.locator(GRID_IMAGES).all()]


def error_text(page: Any) -> str:
    """The message that pops up where something cannot be done."""
    page.wait_for_selector(".toast-body")
    text = str(page.locator(".toast-body").first.inner_text())
    page.locator(".toast-close").first.click()
    return text
