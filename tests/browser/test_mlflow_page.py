"""MLflow's page on a real small sweep, opened in a real browser."""

from __future__ import annotations

import shutil

import pytest
from real_sweep import STEPS, TRIALS, run_real_sweep
from sweep_platform.tracking.server import running

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

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]


@pytest.fixture(scope="module")
def page_and_runs(tmp_path_factory):
    """A page in the browser, the address of the experiment's runs, the runs by name, and MLflow's client."""
    from playwright.sync_api import sync_playwright

    store = run_real_sweep(tmp_path_factory.mktemp("browser"))
    experiment = store.client.get_experiment_by_name("small").experiment_id
    runs = {run.info.run_name: run for run in store.client.search_runs([experiment])}
    with running(store) as (url, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(30_000)
        yield page, f"{url}/#/experiments/{experiment}/runs", runs, store.client
        browser.close()


def visit(page, address):
    """Open a page of the app afresh: a change of the part after # alone would keep the old one's state."""
    page.goto("about:blank")
    page.goto(address, wait_until="domcontentloaded")


def test_runs_page_shows_parent_and_nested_trials(page_and_runs, tmp_path):
    page, address, _, _ = page_and_runs
    visit(page, address)
    parent = page.get_by_role("link", name="small@1")
    parent.wait_for()
    assert page.get_by_role("link", name="small/01").count() == 0  # inside the parent, which is folded
    page.locator(".ag-center-cols-container, .ag-pinned-left-cols-container").locator("button").first.click()
    page.get_by_role("link", name="small/01").wait_for()
    page.screenshot(path=tmp_path / "runs.png")
    assert all(page.get_by_role("link", name=f"small/0{number}").count() == 1 for number in range(TRIALS))


def test_trials_are_found_by_tag_and_sorted_by_cost(page_and_runs, tmp_path):
    page, address, runs, _ = page_and_runs
    query = "searchFilter=tags.state%3D%27complete%27&orderByKey=metrics.%60cost%2Fflops%60&orderByAsc=true"
    visit(page, f"{address}?{query}")
    page.get_by_role("link", name="small/01").wait_for()
    page.screenshot(path=tmp_path / "found.png")
    links = [text for text in page.get_by_role("link").all_inner_texts() if text.startswith("small/")]
    trials = [name for name in runs if name.startswith("small/")]
    assert links == sorted(trials, key=lambda name: runs[name].data.metrics["cost/flops"])


@pytest.mark.slow
def test_trial_page_shows_its_metrics_by_step(page_and_runs, tmp_path):
    page, address, runs, client = page_and_runs
    run = runs["small/01"].info.run_id
    visit(page, f"{address}/{run}/model-metrics")
    for section in ("actor", "cost", "filter", "tokens", "val"):
        page.wait_for_function(f"() => /{section}\\s*\\(\\d+\\)/.test(document.body.innerText)")
    for metric in ("actor/entropy", "val/aime/accuracy"):
        page.get_by_placeholder("Search metric charts").fill(f"^{metric}$")
        page.get_by_text(f"small/01 ({metric})").first.wait_for()
        page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot').length == 1")
        chart = page.locator(".js-plotly-plot")
        steps, values = chart.evaluate("chart => [Array.from(chart.data[0].x), Array.from(chart.data[0].y)]")
        history = client.get_metric_history(run, metric)
        assert steps == [point.step for point in history] and steps[-1] == STEPS
        assert values == pytest.approx([point.value for point in history])
        page.screenshot(path=tmp_path / f"{metric.replace('/', '-')}.png")


def test_samples_are_shown_as_a_table_and_the_frontier_as_a_picture(page_and_runs, tmp_path):
    page, address, runs, _ = page_and_runs
    visit(page, f"{address}/{runs['small/00'].info.run_id}/artifacts/samples.json")
    page.get_by_text("View as table").wait_for()
    page.get_by_text("ground_truth").first.wait_for()
    page.screenshot(path=tmp_path / "samples.png")
    visit(page, f"{address}/{runs['small@1'].info.run_id}/artifacts/frontier.png")
    page.get_by_text("frontier.html").first.wait_for()
    picture = page.locator("img[src*='frontier.png'], img[src^='blob:']").first
    picture.wait_for()
    page.screenshot(path=tmp_path / "frontier.png")
