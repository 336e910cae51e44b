"""The report in a real browser without a network: drawn, silent, and running nothing that a user wrote."""

from __future__ import annotations

import shutil

import pytest
from hostile import report_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return report_of(tmp_path_factory.mktemp("report")).as_uri()


@pytest.mark.parametrize(
    ("scheme", "width", "ground"), [("light", 1200, "rgb(255, 255, 255)"), ("dark", 390, "rgb(22, 24, 28)")]
)
def test_it_is_drawn_offline_and_runs_nothing_foreign(browser, report, tmp_path, scheme, width, ground):
    told, asked = [], []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report)
    page.locator(".chart .main-svg").last.wait_for()
    assert told == [] and asked == [report]
    assert page.evaluate("window.hacked") is None
    charts = page.locator(".chart")
    assert charts.count() == 5
    for index in range(5):
        chart = charts.nth(index)
        assert chart.locator(".main-svg").count() >= 1
        assert chart.locator(".trace, .contourfill, .bars .point").count() >= 1, f"chart {index} is empty"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing but tables scrolls sideways"
    page.screenshot(path=tmp_path / "report.png", full_page=True)
    context.close()


def test_colours_follow_the_reader(browser, report):
    page = browser.new_page(color_scheme="light")
    page.goto(report)
    colour = "getComputedStyle(document.querySelector('.chart .xtick text')).fill"
    page.locator(".chart .xtick text").first.wait_for()
    light = page.evaluate(colour)
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(300)
    assert page.evaluate(colour) != light, "the pictures are drawn again"
    page.close()
