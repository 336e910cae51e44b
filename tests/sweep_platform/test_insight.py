"""What a sweep teaches: importance, parallel coordinates, contours and the frontier over time."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from run_ledger import CostRecord, Ledger, SweepRecord, TrialRecord, TrialState
from sweep_platform.executors import make_executor
from sweep_platform.home import Home
from sweep_platform.insight import Absent, Material, pictures
from sweep_platform.insight.contours import contours
from sweep_platform.insight.history import history
from sweep_platform.insight.importance import LEAST, importance
from sweep_platform.insight.material import INACTIVE
from sweep_platform.insight.parallel import parallel
from sweep_platform.plots import save_picture
from sweep_platform.plots.insight_pictures import (
    ContourPicture,
    HistoryPicture,
    ImportancePicture,
    ParallelPicture,
)
from sweep_platform.plots.picture import linear_ticks
from toybox.sweeps import run_sweep, toy_spec

ACCURACY = {"metric": "val/accuracy", "direction": "maximize"}
FLOPS = {"metric": "cost/flops", "direction": "minimize"}
TOKENS = {"metric": "cost/tokens", "direction": "minimize"}
CONDITIONAL = {
    "actor.batch": {"int": [1, 8]},
    "actor.lr": {"float": [0.01, 1.0], "log": True, "when": "actor.batch >= 4"},
    "trainer.fault": {"choice": ["", "missing"]},
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepRecord, list[TrialRecord]]:
    """Fourteen trials of a toy whose accuracy depends on both knobs and whose compute depends on one."""
    home = Home(tmp_path_factory.mktemp("insight"))
    with Ledger.open(home.ledger_url) as ledger:
        trials = run_sweep(ledger, home, toy_spec(budget={"trials": 14}), make_executor("inline"))
        found = ledger.find_sweep("toy")
    assert found is not None
    return found, trials


def of(sweep: tuple[SweepRecord, list[TrialRecord]], **spec: Any) -> Material:
    """The material of a sweep, its spec changed."""
    record, trials = sweep
    return Material.of(replace(record, spec={**record.spec, **spec}), trials)


def test_compute_depends_on_the_batch_alone(sweep: tuple[SweepRecord, list[TrialRecord]]) -> None:
    found = importance(of(sweep))
    assert isinstance(found, ImportancePicture)
    accuracy, compute = found.panels
    assert (accuracy.title, compute.title) == ("for more validation accuracy", "for less training compute")
    first, second = compute.bars
    assert first.label == "batch" and first.share > max(0.8, first.chance)
    assert second.label == "lr" and second.share < second.chance, "no effect, and none is claimed"
    for bar in (*accuracy.bars, *compute.bars):
        assert bar.low <= bar.share <= bar.high
    assert sum(bar.share for bar in accuracy.bars) == pytest.approx(1)
    assert "batch" in found.caption and "14 trials" in found.caption


def test_results_without_a_pattern_give_no_importance_beyond_chance(
    sweep: tuple[SweepRecord, list[TrialRecord]],
) -> None:
    record, trials = sweep
    noise = [replace(t, values=(0.5 + 0.1 * math.sin(1e4 * t.number), 1e9)) for t in trials]
    found = importance(Material.of(record, noise))
    assert isinstance(found, ImportancePicture)
    assert found.caption.startswith("No parameter stands out from chance yet")
    assert all(bar.share == 0 for bar in found.panels[1].bars), "all cost the same: nothing is to be explained"


def test_a_condition_has_the_credit_for_what_it_switches_off(home: Home, ledger: Ledger) -> None:
    spec = toy_spec(search=CONDITIONAL, budget={"trials": 24})
    trials = run_sweep(ledger, home, spec, make_executor("inline"))
    record = ledger.find_sweep("toy")
    assert record is not None
    material = Material.of(record, trials)
    shown = pictures(material)
    bars, lines = shown["importance"], shown["parallel"]
    assert isinstance(bars, ImportancePicture) and isinstance(lines, ParallelPicture)
    assert "fault" not in {bar.label for bar in bars.panels[0].bars}, "all complete trials have one value of it"
    assert bars.panels[1].bars[0].label == "batch"
    lr = [scale.title for scale in lines.scales].index("lr")
    assert (lines.scales[lr].ticks[0], lines.scales[lr].labels[0]) == (INACTIVE, "not active")
    for point, line in zip(material.points, lines.lines, strict=True):
        assert (line.places[lr] == INACTIVE) is ("actor.lr" not in point.params)


def test_parallel_coordinates_have_every_trial_and_scale(sweep: tuple[SweepRecord, list[TrialRecord]]) -> None:
    material = of(sweep)
    found = parallel(material)
    assert isinstance(found, ParallelPicture)
    assert [scale.title for scale in found.scales] == ["lr", "batch", "validation accuracy", "training compute"]
    assert {line.number for line in found.lines if line.on_front} == material.front
    best = max(material.points, key=lambda point: point.values[0])
    (line,) = (line for line in found.lines if line.number == best.number)
    assert line.shade == line.places[2] == 1
    assert line.places[0] == pytest.approx(math.log(best.params["actor.lr"] / 0.01) / math.log(100))


def test_captions_say_whose_front_it_is_once_there_are_confirming_runs(
    sweep: tuple[SweepRecord, list[TrialRecord]],
) -> None:
    record, trials = sweep
    again = replace(trials[0], number=len(trials), replicate=1, state=TrialState.COMPLETE)
    for among, told in ((trials, False), ([*trials, again], True)):
        material = Material.of(record, among)
        for picture in (parallel(material), history(material)):
            assert not isinstance(picture, Absent) and "front" in picture.caption
            assert ("by the search's own runs" in picture.caption) == told


def test_contours_are_best_where_the_objective_is(sweep: tuple[SweepRecord, list[TrialRecord]]) -> None:
    found = contours(of(sweep))
    assert isinstance(found, ContourPicture)
    accuracy, compute = found.panels
    assert {accuracy.x.title, accuracy.y.title} == {"lr", "batch"} and compute.x.title == "batch"
    middle = compute.grid[len(compute.grid) // 2]
    assert middle[0] > 0.9 > 0.2 > middle[-1], "a small batch is cheap"
    assert sorted(n for mark in compute.marks for n in mark.label.split(", ")) == sorted(map(str, range(14)))


def test_history_grows_with_what_was_spent(sweep: tuple[SweepRecord, list[TrialRecord]]) -> None:
    record, trials = sweep
    found = history(of(sweep))
    assert isinstance(found, HistoryPicture)
    xs, ys = [x for x, _, _ in found.dots], [y for _, y, _ in found.dots]
    assert xs == sorted(xs) and xs[-1] == sum(trial.cost.flops for trial in trials)
    assert ys == sorted(ys) and ys[-1] == 1
    assert [moment.label for moment in found.moments] == ["after 4 trials", "after 7 trials", "after 14 trials"]
    kept = [replace(trials[0], attempts=0), *trials[1:]]
    reused = history(Material.of(record, kept))
    assert isinstance(reused, HistoryPicture)
    assert reused.dots[0][0] == 0 and reused.dots[-1][0] == pytest.approx(xs[-1] - trials[0].cost.flops)
    stopped = replace(trials[3], state=TrialState.FAILED, values=None, cost=CostRecord(flops=1e15))
    paid = history(Material.of(record, [*trials[:3], stopped, *trials[4:]]))
    assert isinstance(paid, HistoryPicture) and paid.dots[-1][0] > 1e15, "what failed was paid for too"


@pytest.mark.parametrize("objectives", [(ACCURACY,), (ACCURACY, FLOPS, TOKENS)])
def test_every_picture_is_drawn_with_any_number_of_objectives(
    sweep: tuple[SweepRecord, list[TrialRecord]], tmp_path: Path, objectives: tuple[dict[str, str], ...]
) -> None:
    record, trials = sweep
    names = [objective["metric"] for objective in objectives]
    trials = [replace(trial, values=tuple(trial.metrics[name] for name in names)) for trial in trials]
    material = Material.of(replace(record, spec={**record.spec, "objectives": list(objectives)}), trials)
    shown = pictures(material)
    assert not [picture for picture in shown.values() if isinstance(picture, Absent)]
    grown = shown["history"]
    assert isinstance(grown, HistoryPicture) and bool(grown.moments) is (len(objectives) == 2)
    for name, picture in shown.items():
        assert not isinstance(picture, Absent)
        for ending in ("html", "png"):
            save_picture(picture, tmp_path / f"{name}.{ending}")
            assert (tmp_path / f"{name}.{ending}").stat().st_size > 10_000


@pytest.mark.parametrize("count", [0, 1, 2, LEAST - 1])
def test_too_few_trials_are_said_to_be_too_few(sweep: tuple[SweepRecord, list[TrialRecord]], count: int) -> None:
    record, trials = sweep
    shown = pictures(Material.of(record, trials[:count]))
    for name, least in (("importance", LEAST), ("contour", LEAST), ("parallel", 2), ("history", 2)):
        picture = shown[name]
        if count < least:
            assert isinstance(picture, Absent) and f"there are {count}" in picture.reason
        else:
            assert not isinstance(picture, Absent)


def test_text_that_plotly_or_matplotlib_could_read_as_markup_stays_text(
    sweep: tuple[SweepRecord, list[TrialRecord]], tmp_path: Path
) -> None:
    record, trials = sweep
    tag = "<a href='https://example.org'>$\\frac{1}$</a>"
    spec = {**record.spec, "search": {**record.spec["search"], "trainer.fault": {"choice": ["", tag]}}}
    named = [replace(t, params={**t.params, "trainer.fault": tag if t.number % 2 else ""}, origin=tag) for t in trials]
    for name, picture in pictures(Material.of(replace(record, spec=spec), named)).items():
        assert not isinstance(picture, Absent)
        save_picture(picture, tmp_path / f"{name}.png")
        save_picture(picture, tmp_path / f"{name}.html")
        assert "u003ca href" not in (tmp_path / f"{name}.html").read_text()


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 10.7, (0, 2, 4, 6, 8, 10)), (0.55, 0.87, (0.6, 0.7, 0.8)), (0.3, 0.3, (0.3,)), (-1.0, 1.0, (-1, 0, 1))],
)
def test_linear_ticks_are_round(low: float, high: float, ticks: tuple[float, ...]) -> None:
    found = linear_ticks(low, high)
    assert len(found) <= 7 and set(ticks) <= set(found) and all(low <= tick <= high for tick in found)
