"""The report: whole, self-contained, and safe, in whatever state its sweep is."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hostile import HACK, TRIALS, hostile_sweep, report_of
from run_ledger import Ledger
from shell import Shell
from sweep_platform.driver import open_sweep
from sweep_platform.executors import make_executor
from sweep_platform.home import Home
from sweep_platform.report.page import render
from toybox.sweeps import run_sweep, toy_spec

SECTIONS = (
    *("question", "setting", "frontier", "importance", "parallel", "contour", "history", "waste", "compared"),
    "chosen",
)


class Page(HTMLParser):
    """A page as a browser would take it apart."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, Any], str]] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Any]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def charts(self) -> int:
        """Pictures that are drawn."""
        return sum(attrs.get("type") == "application/json" for attrs, _ in self.scripts)

    def rows(self, section: str) -> int:
        """Rows of the tables under a heading."""
        places = [index for index, (tag, attrs) in enumerate(self.tags) if tag == "h2" and "id" in attrs]
        start = next(index for index in places if self.tags[index][1]["id"] == section)
        end = next((index for index in places if index > start), len(self.tags))
        tags = [tag for tag, _ in self.tags[start:end]]
        return tags.count("tr")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("report"))


def test_it_holds_all_it_needs_and_runs_nothing_else(hostile: Path) -> None:
    text = hostile.read_text()
    page = Page(text)
    assert not [attrs for _, attrs in page.tags if "src" in attrs or str(attrs.get("href", "#"))[:1] != "#"]
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "base", "form")]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    policy = next(attrs["content"] for _, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy")
    runs = [script for attrs, script in page.scripts if "type" not in attrs]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in runs]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes and len(runs) == 2, "plotly and the code that draws"
    assert "default-src 'none'" in policy and "http" not in policy
    assert len(text) < 6e6
    assert page.charts() == 5


def test_what_users_wrote_is_shown_and_never_markup(hostile: Path) -> None:
    page = Page(hostile.read_text())
    assert str(7654321 * 7) not in page.text, "a template in a template isn't filled"
    assert page.text.count(HACK) > 10, "in tables, reasons, answers, names"
    for attrs, script in page.scripts:
        if attrs.get("type") == "application/json":
            assert "<" not in script


def test_each_section_has_its_facts(hostile: Path) -> None:
    page = Page(hostile.read_text())
    assert [attrs["id"] for tag, attrs in page.tags if tag == "h2" and "id" in attrs] == list(SECTIONS)
    for section in ("question", "setting", "frontier", "waste", "compared", "chosen"):
        assert page.rows(section) > 2, section
    told = page.text
    for words in (
        "maximize validation accuracy",
        f"{TRIALS} complete, 1 infeasible",
        "0.580 ± 0.020",
        "promoted as production, unconfirmed by",
        "platform train production",
        "platform confirm toy@1",
        "40.0%",
        "800 tokens",
        "+0.280 ± 0.028",
        "share of the device's peak, generating 12.5%",
        "peak memory not recorded",
        "10 trials, 10 k tokens in all. Of those generated for training, 50% were trained on.",
    ):
        assert words in told, words


def test_a_sweep_without_a_trial_has_a_report(ledger: Ledger) -> None:
    spec = toy_spec()
    sweep = ledger.create_sweep("toy", spec.to_dict(), spec.identity(), 0, None)
    page = Page(render(ledger, sweep))
    assert page.charts() == 0
    assert "Not finished: none yet" in page.text and "no complete trial to choose from" in page.text
    assert page.text.count("there are 0") == 4, "each picture says what it needs"


def test_a_sweep_that_runs_has_a_report(ledger: Ledger, home: Home) -> None:
    with open_sweep(ledger, toy_spec(budget={"concurrency": 2}), home) as driver:
        driver.next_trial()
        page = Page(render(ledger, driver.sweep))
    assert "1 running" in page.text and page.charts() == 0


@pytest.mark.parametrize("names", [("val/accuracy",), ("val/accuracy", "cost/flops", "cost/tokens")])
def test_one_and_three_objectives(ledger: Ledger, home: Home, names: tuple[str, ...]) -> None:
    ways = [{"metric": name, "direction": "minimize" if "cost" in name else "maximize"} for name in names]
    run_sweep(ledger, home, toy_spec(objectives=ways), make_executor("inline"))
    sweep = ledger.find_sweep("toy")
    assert sweep is not None
    page = Page(render(ledger, sweep))
    assert page.charts() == 3 and "needs 8 complete trials; there are 4" in page.text
    assert "keeps no account of tokens" in page.text and "no default recipe to compare with" in page.text


def test_the_command_writes_it_and_says_where(platform: Shell) -> None:
    with Ledger.open(f"sqlite:///{platform.home}/ledger.db") as ledger:
        hostile_sweep(ledger)
    told = platform("report", "toy@1")
    assert (told.code, told.err) == (0, "") and "written to reports/toy.html" in told.out
    assert Path("reports/toy.html").stat().st_size > 1e6


def test_bad_input_is_told(platform: Shell) -> None:
    with Ledger.open(f"sqlite:///{platform.home}/ledger.db") as ledger:
        hostile_sweep(ledger)
    unknown = platform("report", "other")
    assert unknown.code == 2 and "need one of ['toy']" in unknown.err
    Path("file").write_text("")
    place = platform("report", "toy", "--out", "file/toy.html")
    assert place.code == 2 and place.err.startswith("--out: got file/toy.html")
