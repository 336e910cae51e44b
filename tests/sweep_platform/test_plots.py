from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_ledger.records import EvaluationRecord
from sweep_platform.errors import BadInput
from sweep_platform.frontier import Frontier, Goal, Judged, Point, with_judgement
from sweep_platform.plots import FrontierPicture, evaluation_size, save_frontier
from sweep_platform.plots.html import figure as page
from sweep_platform.plots.image import figure
from sweep_platform.plots.picture import log_ticks

GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))


def frontier(rows=((0.3, 1e12), (0.45, 2e12), (0.5, 8e12), (0.2, 3e12)), goals=GOALS):
    points = tuple(
        Point(i, goals, tuple(row), (0.02,) + (None,) * (len(row) - 1), {"actor.optim.lr": 1e-4}, "tpe")
        for i, row in enumerate(rows)
    )
    return Frontier("aime@1", goals, points, {"complete": len(points), "failed": 2})


def test_picture_says_what_it_shows():
    picture = FrontierPicture.of(frontier(), evaluated=(128, 4))
    assert picture.title == "aime@1: validation accuracy against training compute"
    assert picture.caption == (
        "4 complete trials; not shown: 2 failed; each evaluated on 128 problems × 4 samples; "
        "error bars: ±1 standard error"
    )
    assert picture.x.log and not picture.y.log
    assert picture.x.labels == ("1 TFLOPs", "1.5 TFLOPs", "2 TFLOPs", "3 TFLOPs", "5 TFLOPs")
    assert [dot.number for dot in picture.dots if dot.on_front] == [0, 1, 2]
    assert [dot.number for dot in picture.dots if dot.knee] == [1]
    assert picture.steps == ((1e12, 0.3), (2e12, 0.3), (2e12, 0.45), (8e12, 0.45), (8e12, 0.5))
    assert "actor.optim.lr = 0.0001" in picture.dots[0].hover


def test_caption_claims_no_error_bars_where_there_are_none():
    shown = frontier()
    bare = replace(shown, points=tuple(replace(point, errors=(None, None)) for point in shown.points))
    assert "error bars" not in FrontierPicture.of(bare).caption


@pytest.mark.parametrize("name", ["front.html", "front.png"])
def test_confirmed_points_have_ellipses(tmp_path, name):
    judged = {
        0: Judged(0, 3, (0.31, 1e12), (0.02, 1e11), 0.9, ((4e-4, 1e9), (1e9, 1e22))),
        2: Judged(2, 2, (0.48, 8e12), (0.01, 1e10), 1.0, ((1e-4, 0.0), (0.0, 1e20))),
    }
    found = frontier()
    points = tuple(with_judgement(point, judged.get(point.number), confirmed=True) for point in found.points)
    picture = FrontierPicture.of(replace(found, points=points))
    confirmed = [dot for dot in picture.dots if dot.ellipse]
    assert [dot.number for dot in confirmed] == [0, 2]
    xs, ys = zip(*confirmed[0].ellipse, strict=True)
    assert max(ys) == pytest.approx(0.33) and min(ys) == pytest.approx(0.29), "one standard error up and down"
    assert max(xs) == pytest.approx(1e12 * math.exp(0.1)) and xs[0] == pytest.approx(xs[-1])
    assert max(xs) > 0 and "ellipses" in picture.caption and "confirming runs, 2 or more" in picture.caption
    save_frontier(replace(found, points=points), tmp_path / name)
    assert (tmp_path / name).stat().st_size > 10_000


@given(st.floats(1e-3, 1e18), st.floats(1.0, 1e12))
def test_log_ticks_are_few_distinct_and_inside(low, factor):
    high = low * factor
    ticks = log_ticks(low, high)
    assert len(ticks) == len(set(ticks)) and list(ticks) == sorted(ticks)
    assert 1 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    assert len(ticks) >= 2 or high == low or math.isclose(low, high)
    gaps = [math.log(right / left) for left, right in pairwise(ticks)]
    assert len(ticks) == 2 or min(gaps, default=1.0) >= 0.1199 * math.log(factor)


def test_evaluation_size_counts_problems_of_each_source():
    samples = [
        EvaluationRecord(30, source, str(problem), k, "p", "r", "1", "1", True, 3)
        for source in ("a", "b")
        for problem in range(3)
        for k in range(4)
    ]
    assert evaluation_size(samples) == (6, 4)
    assert evaluation_size([]) is None


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_images_are_what_their_ending_says(tmp_path, ending):
    path = tmp_path / "deep" / f"front.{ending}"
    save_frontier(frontier(), path, (128, 4))
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    again = path.with_stem("again")
    save_frontier(frontier(), again, (128, 4))
    assert again.read_bytes() == path.read_bytes()


def test_crowded_image_hides_nothing():
    rows = [(0.3 + 0.01 * i, 1e12 * (1.02 + 0.004 * i) ** i) for i in range(25)] + [(0.2, 2e12 + i) for i in range(9)]
    crowded = replace(frontier(rows), address="a-name-of-a-sweep-that-is-as-long-as-a-name-may-be-at-the-most-64@12")
    picture = FrontierPicture.of(crowded)
    sheet = figure(picture)
    sheet.draw_without_rendering()
    (axes,) = sheet.axes
    labels = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
    boxes = [box for _, box in labels]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert str(crowded.knee.number) in dict(labels)
    assert 5 < len(labels) < 25, "those without a free place go without"
    for dot in picture.dots:
        x, y = axes.transData.transform((dot.x, dot.y))
        assert not any(box.contains(x, y) for box in boxes)
    title = axes.get_title(loc="left")
    assert "\n" in title and title.replace("\n", " ") == picture.title


def test_a_long_caption_stays_on_the_image():
    busy = replace(frontier(), states={name: 12 for name in ("complete", "failed", "infeasible", "lost", "pruned")})
    picture = FrontierPicture.of(busy, evaluated=(1280, 16))
    sheet = figure(picture)
    sheet.draw_without_rendering()
    (caption,) = (text for text in sheet.texts if text.get_text().startswith("4 complete"))
    assert len(picture.caption) > 125 and caption.get_text().replace("\n", " ") == picture.caption
    assert caption.get_window_extent().x1 < sheet.bbox.x1


def test_numbers_of_crowded_dots_stand_on_either_side_on_a_page():
    rows = ((0.3, 1e12), (0.7, 2.00e12), (0.9, 8e12), (0.701, 2.01e12), (0.7005, 2.005e12))
    (front,) = (trace for trace in page(FrontierPicture.of(frontier(rows))).data if trace.name == "on the frontier")
    places = dict(zip(front.text, front.textposition, strict=True))
    assert places["0"] == places["2"] == "top left"
    crowded = [place for number, place in places.items() if number in "134"]
    assert sorted(crowded[:2]) == ["bottom right", "top left"]


def test_page_is_interactive_and_self_contained(tmp_path):
    path = tmp_path / "front.html"
    save_frontier(frontier(), path, (128, 4))
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<script[^>]+src=", text)
    traces = json.loads(re.search(r"Plotly\.newPlot\(\s*\"[^\"]+\",\s*(\[.*?\]),\s*\{\"", text, re.S).group(1))
    assert {trace["name"] for trace in traces} == {"other trials", "frontier", "on the frontier", "knee"}
    (knee,) = (trace for trace in traces if trace["name"] == "knee")
    assert knee["text"] == ["1"] and "128 problems" in text


@pytest.mark.parametrize(
    ("goals", "rows"),
    [
        ((Goal("val/accuracy", "maximize"),), ((0.3,), (0.4,))),
        (GOALS, ((0.3, 0.0), (0.4, 5.0))),
        (GOALS, ((0.3, 1e12),)),
        ((*GOALS, Goal("cost/tokens", "minimize")), ((0.3, 1e12, 5.0), (0.4, 2e12, 4.0))),
        ((Goal("a", "maximize"), Goal("b", "maximize")), ((0.3, 1.0), (0.4, 0.5))),
    ],
)
def test_other_objectives_are_drawn_too(tmp_path, goals, rows):
    for name in ("f.png", "f.html"):
        save_frontier(frontier(rows, goals), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_unknown_ending_and_unwritable_place(tmp_path):
    with pytest.raises(BadInput, match=r"--plot: got .*front\.gif; need .*\.html, \.png, \.svg, \.pdf"):
        save_frontier(frontier(), tmp_path / "front.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--plot"):
        save_frontier(frontier(), tmp_path / "file" / "front.png")


def test_renderers_are_loaded_when_they_draw():
    code = (
        "import sys, sweep_platform.plots; loaded = {'plotly', 'matplotlib'} & set(sys.modules);"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
