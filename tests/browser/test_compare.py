"""The Compare tab in a real browser."""

from __future__ import annotations

from pathlib import Path

from tests.browser.page_steps import GRID_IMAGES, error_text, go, set_up

DRAWN = ("base", "draw/seed-0@20")


def test_checkpoints_share_a_seed_and_can_be_overlaid_enlarged_and_exported(visit, pictured, chromium, tmp_path):
    page = visit()
    set_up(page, *DRAWN)
    first, second, third, fourth = go(page, 4)
    assert len({first, second, third, fourth}) == 4
    cell = page.locator("#mm-grid tbody tr").first.locator("> td").nth(1)
    assert all(name in cell.inner_text() for name in ("shapeworld", "held out", "Δ base", "Δ best"))
    cell.locator("summary").click()
    assert all(text in cell.inner_text() for text in ("draw/seed-0@20", "3, row 0 of 2", "versions", "RLG"))
    assert "drift" in page.locator("#mm-grid thead").inner_text() and "★" in page.locator("#mm-grid thead").inner_text()

    page.wait_for_selector(".slider-wrap img >> nth=1")
    assert "base, seed 3 / 0" in page.locator("#mm-left input").input_value()
    before = page.locator(".slider-wrap img").first.get_attribute("src")
    page.locator("#mm-left input").click()
    page.get_by_role("option", name="draw/seed-0@20, seed 3 / 1").click()
    page.wait_for_function("(old) => document.querySelector('.slider-wrap img').src !== old", arg=before)
    pictured(page, "compare")

    page.locator("#mm-grid .mm-zoom").first.click()
    assert page.locator(".mm-large img").evaluate("(image) => getComputedStyle(image).imageRendering") == "pixelated"
    pictured(page, "zoom")
    page.keyboard.press("Escape")
    assert page.locator(".mm-large").count() == 0

    with page.expect_download() as download:
        page.click("#mm-export")
    download.value.save_as(tmp_path / "page.html")
    text = Path(tmp_path / "page.html").read_text(encoding="utf-8")
    assert text.count("data:image/png") == 4 and "<script" not in text
    offline = chromium.new_context(offline=True, viewport={"width": 1280, "height": 900})
    alone = offline.new_page()
    alone.goto(f"file://{tmp_path}/page.html")
    assert alone.locator("figure img").count() == 4
    pictured(alone, "exported")
    offline.close()
    set_up(page, *DRAWN, seed=4)
    assert first not in go(page, 4)
    set_up(page, *DRAWN)
    assert go(page, 4) == [first, second, third, fourth]  # the same seed, the same pictures


def test_curve_points_select_the_nearest_checkpoint(visit, pictured):
    page = visit()
    set_up(page, "base")
    reward_curve = page.locator(".mm-curve:has-text('draw/seed-0')").locator("visible=true")
    reward_curve.locator("circle[data-step='13']").click()
    page.wait_for_function("document.querySelector('#mm-jumped').innerText.includes('nearest')")
    message = page.locator("#mm-jumped").inner_text()
    assert message == "No checkpoint of iteration 13 was kept; the nearest is draw/seed-0@10, which is chosen."
    assert page.locator("#mm-columns label:has-text('draw/seed-0@10') input").is_checked()
    reward_curve.locator("circle[data-step='20']").click()
    page.wait_for_function("document.querySelector('#mm-jumped').innerText.includes('draw/seed-0@20 is chosen')")
    pictured(page, "curve")


def test_guidance_scales_are_rows(visit, pictured):
    page = visit()
    set_up(page, *DRAWN, guidance="1, 3")
    assert len(set(go(page, 4))) == 4
    assert [row.inner_text() for row in page.locator("#mm-grid .mm-grid > tbody > tr > th").all()] == [
        "guidance 1",
        "guidance 3",
    ]
    pictured(page, "guidance")


def test_cancel_keeps_finished_images(visit):
    page = visit()
    set_up(page, *DRAWN, group=16, steps=100)
    page.click("#mm-go")
    page.wait_for_selector("#mm-grid .mm-doing")
    page.click("#mm-cancel")
    page.wait_for_function("document.querySelector('#mm-grid').innerText.includes('Stopped.')")
    assert page.locator(GRID_IMAGES).count() < 32
    set_up(page, "base", group=1)
    assert len(go(page, 1)) == 1  # the model is whole


def test_two_concurrent_visitors_get_separate_results(visit):
    visitors = {visit(): "draw/seed-0@10", visit(): "draw/seed-0@20"}
    expected = {}
    for seed in (1, 2):
        for page, name in visitors.items():
            set_up(page, name, seed=seed)
            expected[page, seed] = go(page, 2)
    assert len({str(pictures) for pictures in expected.values()}) == 4
    for seed in (1, 2, 1):
        for page, name in visitors.items():
            set_up(page, name, seed=seed)
        for page in visitors:
            page.click("#mm-go")
        for page in visitors:
            page.wait_for_selector(f"#mm-grid tbody th:has-text('seed {seed} / 1')")
            page.wait_for_selector("#mm-grid .mm-doing", state="detached")
            page.wait_for_selector(f"{GRID_IMAGES} >> nth=1")
            assert [image.get_attribute("src") for image in page.locator(GRID_IMAGES).all()] == expected[page, seed]


def test_invalid_requests_display_errors(visit, pictured, runs):
    page = visit()
    page.fill("#mm-prompt-box textarea", "x" * 3000)
    page.click("#mm-go")
    assert "3000 characters; at most 2000" in error_text(page)
    hostile = "${alert(1)} {{value}} <img src=x onerror=window.hacked=1> `${window.hacked=2}`"
    page.fill("#mm-prompt-box textarea", hostile)
    set_up(page, "base", "broken/seed-0@20", group=1)
    go(page, 1)
    broken = page.locator("#mm-grid td.mm-broken").inner_text()
    assert "cannot be read" in broken and "damaged: it has 100 of" in broken and str(runs) not in page.content()
    assert page.locator("#mm-grid .mm-prompt").inner_text() == hostile and page.evaluate("window.hacked") is None
    assert "None of the rewards can score this prompt" in page.locator("#mm-grid").inner_text()
    pictured(page, "broken")


def test_deleted_runs_display_an_error(visit, pictured, runs):
    config = runs / "broken" / "seed-0" / "config.yaml"
    text = config.read_text()
    config.unlink()
    try:
        page = visit()
        page.wait_for_selector(".mm-runs .mm-broken")
        assert "is no run: it has no config.yaml" in page.locator(".mm-runs .mm-broken").first.inner_text()
        assert str(runs) not in page.locator("body").inner_text()
        set_up(page, "base", group=1)
        go(page, 1)
        pictured(page, "gone")
    finally:
        config.write_text(text)
