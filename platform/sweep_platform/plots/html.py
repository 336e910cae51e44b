"""Pictures as interactive pages, with plotly. A page holds all it needs and works offline."""

from __future__ import annotations

import math
from functools import singledispatch
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from sweep_platform.plots.picture import FRONT_COLOUR, KNEE_COLOUR, OTHER_COLOUR, Axis, Dot, FrontierPicture, safe

LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.0, "x": 0}
"""Above the picture, where it hides neither ticks nor titles."""
_SIDES = ("top left", "bottom right")
"""Where a dot's number may stand, the best first."""
_NUMBER_WIDE, _NUMBER_HIGH = 0.05, 0.06
"""What a dot's number takes of a picture, as shares of its width and height."""


def write_html(picture: Any, path: Path) -> None:
    """Write the page of one picture."""
    chart = figure(picture)
    chart.update_layout(title={"text": f"{safe(picture.title)}<br><sup>{safe(picture.caption)}</sup>"})
    chart.update_layout(template="plotly_white", margin={"t": 90})
    chart.write_html(path, include_plotlyjs=True, full_html=True, div_id="picture", config={"displaylogo": False})


@singledispatch
def figure(picture: Any) -> go.Figure:
    """A picture as a plotly figure, without title and caption."""
    raise TypeError(type(picture))


@figure.register
def _frontier(picture: FrontierPicture) -> go.Figure:
    chart = go.Figure()
    for dot in picture.dots:
        if dot.ellipse:
            chart.add_trace(_region(dot))
    others = [dot for dot in picture.dots if not dot.on_front]
    front = [dot for dot in picture.dots if dot.on_front and not dot.knee]
    knee = [dot for dot in picture.dots if dot.knee]
    if others:
        chart.add_trace(_dots(others, "other trials", OTHER_COLOUR, 8, "circle"))
    if picture.steps:
        xs, ys = zip(*picture.steps, strict=True)
        line = {"color": "rgba(0, 114, 178, 0.45)", "width": 2.5}
        chart.add_trace(
            go.Scatter(x=xs, y=ys, mode="lines", name="frontier", line=line, hoverinfo="skip", showlegend=True)
        )
    if front:
        chart.add_trace(_dots(front, "on the frontier", FRONT_COLOUR, 12, "circle", places=_places(front, picture)))
    chart.add_trace(_dots(knee, "knee", KNEE_COLOUR, 18, "star", places=["top left"] * len(knee)))
    chart.update_layout(
        xaxis=axis(picture.x),
        yaxis=axis(picture.y),
        height=480,
        legend=LEGEND,
        hoverlabel={"align": "left"},
        margin={"t": 20, "b": 70},
    )
    return chart


def _region(dot: Dot) -> go.Scatter:
    xs, ys = zip(*dot.ellipse, strict=True)
    fill = "rgba(0, 114, 178, 0.14)" if dot.on_front else "rgba(154, 160, 166, 0.14)"
    return go.Scatter(
        x=xs, y=ys, mode="lines", fill="toself", fillcolor=fill, line={"width": 0}, hoverinfo="skip", showlegend=False
    )


def _dots(
    dots: list[Dot], name: str, colour: str, size: int, symbol: str, *, places: list[str] | None = None
) -> go.Scatter:
    """Dots of one kind; those that are given places for their numbers have numbers."""
    labelled = places is not None
    return go.Scatter(
        x=[dot.x for dot in dots],
        y=[dot.y for dot in dots],
        error_y={"type": "data", "array": [dot.error or 0.0 for dot in dots], "width": 3, "thickness": 1.2},
        mode="markers+text" if labelled else "markers",
        text=[str(dot.number) for dot in dots] if labelled else None,
        textposition=places or "top left",
        textfont={"color": colour},
        hovertext=[dot.hover for dot in dots],
        hoverinfo="text",
        name=name,
        marker={"color": colour, "size": size, "symbol": symbol, "line": {"width": 1, "color": "white"}},
    )


def _places(front: list[Dot], picture: FrontierPicture) -> list[str]:
    """Where each number stands: of dots that crowd, by turns on either side, so that they don't cover one another."""
    found: list[str] = []
    for index, dot in enumerate(front):
        near = {found[before] for before in range(index) if _near(front[before], dot, picture)}
        found.append(next((side for side in _SIDES if side not in near), _SIDES[0]))
    return found


def _near(one: Dot, other: Dot, picture: FrontierPicture) -> bool:
    """Whether numbers at the same side of two dots would touch, in a picture of usual size."""
    wide, high = (
        abs(_share(getattr(one, way), getattr(other, way), [getattr(dot, way) for dot in picture.dots], shown))
        for way, shown in (("x", picture.x), ("y", picture.y))
    )
    return wide < _NUMBER_WIDE and high < _NUMBER_HIGH


def _share(one: float, other: float, among: list[float], shown: Axis) -> float:
    """The way from one value to another, as a share of an axis with all of them."""
    at = math.log if shown.log else float
    low, high = at(min(among)), at(max(among))
    return (at(other) - at(one)) / (high - low) if high > low else 0.0


def axis(shown: Axis) -> dict[str, Any]:
    """An axis as plotly takes it."""
    settings: dict[str, Any] = {"title": safe(shown.title), "type": "log" if shown.log else "linear"}
    if shown.ticks:
        settings |= {"tickvals": list(shown.ticks), "ticktext": list(shown.labels)}
    return settings
