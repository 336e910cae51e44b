"""MLflow's page on a projected sweep, opened in a real browser."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from run_ledger import Ledger
from sweep_platform.tracking import Store, sync
from sweep_platform.tracking.server import running

HELPERS = Path(__file__).parents[1] / "sweep_platform" / "helpers"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")


@pytest.fixture(scope="module")
def page_and_runs(tmp_path_factory):
    """A page in the browser, the server's address, and ids: of the experiment and of its runs by name."""
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("browser")
    store = Store(f"sqlite:///{folder}/mlflow.db", folder / "art")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HELPERS))
        import small_sweep
    sys.modules.pop("small_sweep")
    with Ledger.open(f"sqlite:///{folder}/ledger.db") as ledger:
        small_sweep.SmallSweep(ledger).run()
        sync(ledger, "aime", store)
    experiment = store.client.get_experiment_by_name("aime").experiment_id
    runs = {run.info.run_name: run.info.run_id for run in store.client.search_runs([experiment])}
    with running(store) as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(30_000)
        yield page, f"{url}/#/experiments/{experiment}/runs", runs
        browser.close()


def visit(page, address):
    """Open a page of the app afresh: a change of the part after # alone would keep the old one's state."""
    page.goto("about:blank")
    page.goto(address, wait_until="domcontentloaded")


def test_runs_page_shows_parent_and_nested_trials(page_and_runs, tmp_path):
    page, address, _ = page_and_runs
    visit(page, address)
    parent = page.get_by_role("link", name="aime@1")
    parent.wait_for()
    assert page.get_by_role("link", name="aime/01").count() == 0  # inside the parent, which is folded
    page.locator(".ag-center-cols-container, .ag-pinned-left-cols-container").locator("button").first.click()
    page.get_by_role("link", name="aime/01").wait_for()
    page.screenshot(path=tmp_path / "runs.png")
    assert all(page.get_by_role("link", name=f"aime/0{number}").count() == 1 for number in range(4))


def test_trials_are_found_by_tag_and_sorted_by_accuracy(page_and_runs, tmp_path):
    page, address, _ = page_and_runs
    query = "searchFilter=tags.state%3D%27complete%27&orderByKey=metrics.%60val%2Faccuracy%60&orderByAsc=false"
    visit(page, f"{address}?{query}")
    page.get_by_role("link", name="aime/01").wait_for()
    page.screenshot(path=tmp_path / "found.png")
    links = page.get_by_role("link").all_inner_texts()
    assert [text for text in links if text.startswith("aime/")] == ["aime/01", "aime/00"]


def test_trial_page_shows_its_metrics_by_step(page_and_runs, tmp_path):
    page, address, runs = page_and_runs
    visit(page, f"{address}/{runs['aime/01']}/model-metrics")
    for section in ("actor", "cost", "filter"):
        page.wait_for_function(f"() => /{section}\\s*\\(\\d+\\)/.test(document.body.innerText)")
    chart = page.locator(".js-plotly-plot").first
    chart.wait_for()
    page.get_by_text("aime/01 (actor/entropy)").first.wait_for()
    steps, values = chart.evaluate("chart => [Array.from(chart.data[0].x), Array.from(chart.data[0].y)]")
    assert steps == [0, 1, 2, 3, 4] and values == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5])
    page.screenshot(path=tmp_path / "metrics.png")


def test_samples_are_shown_as_a_table_and_the_frontier_as_a_picture(page_and_runs, tmp_path):
    page, address, runs = page_and_runs
    visit(page, f"{address}/{runs['aime/00']}/artifacts/samples.json")
    page.get_by_text("View as table").wait_for()
    page.get_by_text("ground_truth").first.wait_for()
    page.screenshot(path=tmp_path / "samples.png")
    visit(page, f"{address}/{runs['aime@1']}/artifacts/frontier.png")
    page.get_by_text("frontier.html").first.wait_for()
    picture = page.locator("img[src*='frontier.png'], img[src^='blob:']").first
    picture.wait_for()
    page.screenshot(path=tmp_path / "frontier.png")
