"""The report's page: facts and pictures in one HTML file that loads nothing and asks no network.

Text goes through Jinja's escaping, pictures through JSON in which no tag can begin. A content security policy lets the
browser run the page's own two scripts, by their hashes, and nothing else, whatever a name or an answer holds.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep_platform import units
from sweep_platform.errors import BadInput, Fault, NoFeasibleTrial
from sweep_platform.evidence import judged_frontier
from sweep_platform.files import to_yaml, write_atomically
from sweep_platform.insight import Absent, Material, pictures
from sweep_platform.plots import FrontierPicture, evaluation_size
from sweep_platform.plots.insight_pictures import InsightPicture, ParallelPicture
from sweep_platform.plots.picture import title
from sweep_platform.report import facts, spending
from sweep_platform.spec import SweepSpec

if TYPE_CHECKING:
    from run_ledger import Ledger, SweepRecord, TrialRecord

    from sweep_platform.frontier import Frontier

_VERSIONS = ("sweep-platform", "torch", "optuna", "ray")
_SCALE_WIDTH = 105
"""Least pixels of a scale of the parallel coordinates."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A picture on the page."""

    caption: str
    json: str
    """Plotly's data and layout; empty: `caption` says what is missing."""
    width: int = 0
    """Least pixels; the picture can be scrolled where the screen has fewer."""


def write_report(ledger: Ledger, sweep: SweepRecord, out: Path) -> None:
    """Write a sweep's report, whatever state the sweep is in.

    Raises:
        BadInput: the file can't be written.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)  # before the seconds that the pictures take
        write_atomically(out, render(ledger, sweep))
    except OSError as error:
        reason = f"{out} ({error.strerror or error})"
        raise BadInput([Fault("--out", reason, "a file that can be written", "choose another")]) from error


def render(ledger: Ledger, sweep: SweepRecord) -> str:
    """The page as text."""
    import plotly.offline
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    here = resources.files("sweep_platform.report")
    scripts = {"plotly": plotly.offline.get_plotlyjs(), "draw": here.joinpath("draw.js").read_text("utf-8")}
    page = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return page.from_string(here.joinpath("report.html").read_text("utf-8")).render(
        **_content(ledger, sweep),
        style=Markup(here.joinpath("report.css").read_text("utf-8")),
        scripts={name: Markup(text) for name, text in scripts.items()},
        hashes=Markup(" ".join(f"'{_hash(text)}'" for text in scripts.values())),
    )


def _hash(script: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


def _content(ledger: Ledger, sweep: SweepRecord) -> dict[str, Any]:
    spec, trials = SweepSpec.from_dict(sweep.spec), ledger.trials(sweep.id)
    ended = bool(trials) and all(trial.state.final for trial in trials)
    content: dict[str, Any] = {
        "address": sweep.address,
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M UTC}",
        "status": f"{'All trials have ended' if ended else 'Not finished'}: {facts.states(trials)}",
        "objectives": facts.objectives(spec),
        "space": facts.space(spec),
        "setting": facts.setting(sweep, spec, _versions()),
        "budget": facts.budget(ledger, sweep, spec, trials),
        "spec": to_yaml(sweep.spec),
        "unfinished": facts.unfinished(trials),
        "pictures": {name: _drawn(item) for name, item in pictures(Material.of(sweep, trials)).items()},
    }
    try:
        found = judged_frontier(ledger, sweep, trials)
    except NoFeasibleTrial as error:
        none: dict[str, Any] = dict.fromkeys(("front", "values", "choice", "params", "compared", "samples", "summary"))
        return content | none | {"frontier": Drawn(str(error), ""), "waste": spending.waste(trials, None, None)}
    return content | _result(ledger, sweep, found, trials)


def _result(ledger: Ledger, sweep: SweepRecord, found: Frontier, trials: list[TrialRecord]) -> dict[str, Any]:
    """What is told only of sweeps with a complete trial."""
    choice = facts.chosen(ledger, sweep, found, trials)
    default, by_number = spending.default_of(trials, found), {trial.number: trial for trial in trials}
    best = by_number[choice.point.number]
    compared = None if default is None else spending.before_and_after(ledger, trials, default, choice.point)
    shown = zip(found.goals, facts.shown(choice.point), strict=True)
    summary = ", ".join(f"{title(goal.metric)} {value}" for goal, value in shown)
    runs = (
        f"over {units.count(choice.point.runs, 'confirming run')}" if choice.point.runs else "in one run, not confirmed"
    )
    return {
        "frontier": _drawn(FrontierPicture.of(found, evaluation_size(ledger.evaluations(best.id)))),
        "front": facts.front(found),
        "values": facts.values(found, Material.of(sweep, trials).names()),
        "choice": choice,
        "params": facts.params(choice.point),
        "compared": compared,
        "waste": spending.waste(trials, None if default is None else by_number[default.number], best),
        "samples": facts.samples(ledger, best),
        "summary": f"Trial {choice.point.number}: {summary} ({runs}).",
    }


def _drawn(picture: FrontierPicture | InsightPicture | Absent) -> Drawn:
    """A picture as plotly's JSON, in which `<` is written so that no tag can begin."""
    if isinstance(picture, Absent):
        return Drawn(f"Not drawn yet: {picture.reason}.", "")
    import plotly.io

    from sweep_platform.plots.html_insight import figure

    chart = figure(picture).update_layout(template="none")
    told = plotly.io.to_json(chart, engine="json").replace("<", "\\u003c")
    width = _SCALE_WIDTH * len(picture.scales) if isinstance(picture, ParallelPicture) else 0
    return Drawn(picture.caption, told, width)


def _versions() -> Mapping[str, str]:
    return {name: metadata.version(name) for name in _VERSIONS}
