"""The VLM, Video and Prompts tabs in a real browser, and all of them on a phone."""

from __future__ import annotations

import pytest
from PIL import Image, ImageDraw

from tests.browser.conftest import PHONE
from tests.browser.page_steps import error_text, go, set_up

TABS = ("Compare", "VLM", "Blind vote", "Blind vote on answers", "Video", "Prompts")


def requested(page, answers):
    """Press Ask and wait for `answers` answers."""
    page.click("#mm-ask")
    page.wait_for_selector(f"#mm-answers .mm-text >> nth={answers - 1}")
    page.wait_for_selector("#mm-answers .mm-doing", state="detached")
    return [text.inner_text() for text in page.locator("#mm-answers .mm-text").all()]


def test_answers_tab_displays_boxes_and_rewards(visit, pictured):
    page = visit(tab="VLM")
    first, second = requested(page, 2)
    assert "bbox_2d" in first and "bbox_2d" in second
    assert (
        "box_iou" in page.locator("#mm-answers").inner_text() and "read as" in page.locator("#mm-answers").inner_text()
    )
    page.wait_for_selector(".mask >> nth=1")
    assert page.locator(".legend-item:has-text('right')").count() >= 2  # the true box beside each answered one
    pictured(page, "vlm")


def test_uploaded_images_are_answered_and_other_files_rejected(visit, pictured, tmp_path):
    page = visit(tab="VLM")
    wrong, right = tmp_path / "wrong.png", tmp_path / "right.png"
    wrong.write_text("this is no picture")
    picture = Image.new("RGB", (56, 56), "white")
    ImageDraw.Draw(picture).rectangle((8, 20, 28, 40), fill="green")
    picture.save(right)
    upload = page.locator("#mm-upload input[type=file]")
    upload.set_input_files(wrong)
    page.wait_for_selector("#mm-upload .file-preview")
    page.click("#mm-ask")
    assert "That file is no picture" in error_text(page)
    page.locator("#mm-upload [aria-label='Clear'], #mm-upload [aria-label='Remove this file']").first.click()
    upload.set_input_files(right)
    page.wait_for_selector("#mm-upload .file-preview")
    page.get_by_label("Task").click()
    page.get_by_role("option", name="grounding").click()
    page.fill("#mm-question textarea", "Locate the green square.")
    assert len(requested(page, 2)) == 2
    assert page.locator("#mm-answers").inner_text().count("read as") == 2
    pictured(page, "upload")


def test_videos_play_together_under_one_control(visit, pictured):
    page = visit(tab="Video")
    page.click("#mm-film")
    page.wait_for_selector("#mm-clips video >> nth=1")
    page.wait_for_function("[...document.querySelectorAll('#mm-clips video')].every((v) => v.readyState >= 2)")
    times = "[...document.querySelectorAll('#mm-clips video')].map((video) => video.currentTime)"
    page.click("[data-do=on]")
    page.wait_for_function(f"{times}.every((time) => Math.abs(time - 1.5 / 8) < 0.01)")
    page.click("[data-do=back]")
    page.wait_for_function(f"{times}.every((time) => Math.abs(time - 0.5 / 8) < 0.01)")
    page.click("[data-do=play]")
    page.wait_for_function(f"{times}.every((time) => time > 0.2)")
    page.click("[data-do=play]")
    page.wait_for_timeout(200)
    stopped = page.evaluate(times)
    assert max(stopped) - min(stopped) < 0.01 and page.evaluate(times) == stopped
    pictured(page, "video")


def test_prompts_are_sorted_by_change_and_filtered_by_source(visit, pictured):
    page = visit(tab="Prompts")
    page.wait_for_selector("#mm-wins article")
    assert page.locator("#mm-wins h3").first.inner_text().startswith("Lost")
    changes = [float(e.inner_text()) for e in page.locator("#mm-wins .mm-wins").first.locator(".down").all()]
    assert changes == sorted(changes) and changes
    pictured(page, "prompts")
    page.get_by_label("wins first").check()
    page.wait_for_function("document.querySelector('#mm-wins h3').innerText.startsWith('Won')")
    page.locator("#mm-source input").click()
    page.get_by_role("option", name="pair").click()
    page.wait_for_function("![...document.querySelectorAll('#mm-wins .mm-tag')].some((e) => e.innerText !== 'pair')")


@pytest.fixture
def phone(visit):
    return visit(PHONE)


def test_every_tab_fits_a_phone_screen(phone, pictured):
    set_up(phone, "base", "draw/seed-0@20", "draw/seed-0@10", group=1)
    go(phone, 3)
    for tab in TABS:
        chosen = phone.get_by_role("tab", name=tab, exact=True)
        if not chosen.locator("visible=true").count():
            phone.locator(".overflow-menu button").first.click()
            chosen = phone.locator(".overflow-dropdown button", has_text=tab).last
        chosen.locator("visible=true").first.click()
        phone.wait_for_timeout(300)
        pictured(phone, f"phone_{tab.lower().replace(' ', '_')}")
        wide = phone.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], (tab, wide)
