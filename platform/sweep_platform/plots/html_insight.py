"""The pictures beside the frontier as plotly figures; importing this teaches `html.figure` to draw them."""

from __future__ import annotations

import re
from typing import Any

import plotly.graph_objects as go
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots

from sweep_platform.plots.html import LEGEND, axis, figure, write_html
from sweep_platform.plots.insight_pictures import (
    ContourPicture,
    HistoryPicture,
    ImportancePicture,
    ParallelPicture,
    Scale,
)
from sweep_platform.plots.picture import FRONT_COLOUR, KNEE_COLOUR, OTHER_COLOUR, SHADES, safe

__all__ = ["figure", "write_html"]

_MIDDLE = "#6b7280"
"""A grey that is seen on light and dark ground, and on bars."""
_BAR = 26
"""Pixels of height for a bar."""
_BETWEEN = 80
"""Pixels between two panels."""
_LINE = 10
"""Characters on a line of a scale's title."""


@figure.register
def _importance(picture: ImportancePicture) -> go.Figure:
    titles = [safe(panel.title) for panel in picture.panels]
    inside = _BAR * sum(len(panel.bars) for panel in picture.panels) + _BETWEEN * (len(titles) - 1)
    gap = _BETWEEN / inside if len(titles) > 1 else 0.0
    heights = [len(panel.bars) for panel in picture.panels]
    chart = make_subplots(rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=gap, row_heights=heights)
    for row, panel in enumerate(picture.panels, 1):
        bars = panel.bars[::-1]
        labels, shares = [safe(bar.label) for bar in bars], [bar.share for bar in bars]
        spread = {
            "type": "data",
            "symmetric": False,
            "array": [bar.high - bar.share for bar in bars],
            "arrayminus": [bar.share - bar.low for bar in bars],
            "color": _MIDDLE,
            "thickness": 1.5,
        }
        colours = [FRONT_COLOUR if bar.share > bar.chance else OTHER_COLOUR for bar in bars]
        told = [f"{bar.share:.0%} ({bar.low:.0%} to {bar.high:.0%}); chance reaches {bar.chance:.0%}" for bar in bars]
        chart.add_trace(
            go.Bar(
                x=shares,
                y=labels,
                orientation="h",
                marker={"color": colours},
                error_x=spread,
                hovertext=told,
                hoverinfo="text+y",
                name="importance",
                showlegend=False,
            ),
            row=row,
            col=1,
        )
        mark = {"symbol": "line-ns-open", "size": 16, "color": KNEE_COLOUR, "line": {"width": 3}}
        chart.add_trace(
            go.Scatter(
                x=[bar.chance for bar in bars],
                y=labels,
                mode="markers",
                marker=mark,
                hoverinfo="skip",
                name="what chance reaches",
                showlegend=row == 1,
            ),
            row=row,
            col=1,
        )
        chart.update_xaxes(tickformat=".0%", rangemode="tozero", row=row, col=1)
        chart.update_yaxes(automargin=True, row=row, col=1)
    return chart.update_layout(
        height=inside + 110,
        margin={"t": 70, "b": 40, "l": 10},
        legend={**LEGEND, "y": 1 + 25 / inside},
    )


@figure.register
def _parallel(picture: ParallelPicture) -> go.Figure:
    chart = go.Figure()
    across = list(range(len(picture.scales)))
    for line in sorted(picture.lines, key=lambda line: (line.on_front, line.shade)):
        colour = _colour(line.shade)
        chart.add_trace(
            go.Scatter(
                x=across,
                y=line.places,
                mode="lines+markers",
                hovertext=line.hover,
                hoverinfo="text",
                name=f"trial {line.number}",
                showlegend=False,
                opacity=0.95 if line.on_front else 0.5,
                line={"color": colour, "width": 3.5 if line.on_front else 1.5},
                marker={"size": 5},
            ),
        )
    for place, scale in enumerate(picture.scales):
        for tick, label in zip(scale.ticks, scale.labels, strict=True):
            chart.add_annotation(
                x=place, y=tick, text=safe(label), showarrow=False, xanchor="left", xshift=4, font={"size": 11}
            )
        chart.add_vline(x=place, line={"color": OTHER_COLOUR, "width": 1}, layer="below")
    chart.add_trace(_colour_bar(picture.shade))
    chart.update_xaxes(
        tickvals=across,
        ticktext=[_folded(scale.title) for scale in picture.scales],
        side="top",
        showgrid=False,
        zeroline=False,
        range=[-0.2, len(across) - 0.25],
        fixedrange=True,
        tickangle=0,
        automargin=True,
    )
    chart.update_yaxes(visible=False, range=[-0.2, 1.08], fixedrange=True)
    return chart.update_layout(height=520, margin={"t": 80, "b": 30, "l": 10}, hovermode="closest")


def _folded(text: str) -> str:
    """A title on short lines, broken after spaces and underscores."""
    lines = [""]
    for part in re.findall(r"[^ _]*[ _]?", text):
        if lines[-1] and len(lines[-1] + part) > _LINE:
            lines.append("")
        lines[-1] += part
    return "<br>".join(map(safe, lines))


def _colour(shade: float) -> str:
    return str(sample_colorscale(list(SHADES), [shade])[0])


def _colour_bar(shade: Scale) -> go.Scatter:
    """A trace without points, which brings the colour bar of the shades."""
    return go.Scatter(
        x=[None],
        y=[None],
        mode="markers",
        showlegend=False,
        hoverinfo="skip",
        marker={
            "color": [0],
            "cmin": 0,
            "showscale": True,
            "cmax": 1,
            "colorscale": _stops(),
            "colorbar": _ticked(shade),
        },
    )


def _stops() -> list[list[Any]]:
    return [[place / (len(SHADES) - 1), colour] for place, colour in enumerate(SHADES)]


def _ticked(shade: Scale) -> dict[str, Any]:
    title = {"text": safe(shade.title), "side": "right"}
    return {"tickvals": list(shade.ticks), "ticktext": list(shade.labels), "title": title, "thickness": 12}


@figure.register
def _contour(picture: ContourPicture) -> go.Figure:
    titles = [safe(panel.title) for panel in picture.panels]
    count = len(titles)
    gap = 0.35 / count
    chart = make_subplots(rows=count, cols=1, subplot_titles=titles, vertical_spacing=gap)
    high = (1 - gap * (count - 1)) / count
    for row, panel in enumerate(picture.panels, 1):
        fine = [place / (len(panel.grid) - 1) for place in range(len(panel.grid))]
        middle = 1 - (row - 1) * (high + gap) - high / 2
        chart.add_trace(
            go.Contour(
                x=fine,
                y=fine,
                z=panel.grid,
                zmin=0,
                zmax=1,
                colorscale=_stops(),
                hoverinfo="skip",
                contours={"start": 0, "end": 1, "size": 0.1},
                line={"width": 0.5, "color": "white"},
                colorbar={**_ticked(panel.shade), "y": middle, "len": high},
            ),
            row=row,
            col=1,
        )
        marks = panel.marks
        chart.add_trace(
            go.Scatter(
                x=[m.x for m in marks],
                y=[m.y for m in marks],
                mode="markers+text",
                showlegend=False,
                text=[m.label for m in marks],
                textposition=["middle left" if m.x > 0.8 else "middle right" for m in marks],
                textfont={"color": "white"},
                hovertext=[m.hover for m in marks],
                hoverinfo="text",
                marker={"color": "white", "size": 8, "line": {"width": 1, "color": "black"}},
            ),
            row=row,
            col=1,
        )
        chart.update_xaxes(**_scaled(panel.x), row=row, col=1)
        chart.update_yaxes(**_scaled(panel.y), row=row, col=1)
    return chart.update_layout(height=100 + 420 * count, margin={"t": 40, "b": 70, "l": 10})


def _scaled(scale: Scale) -> dict[str, Any]:
    return {
        "title": safe(scale.title),
        "tickvals": list(scale.ticks),
        "ticktext": [safe(label) for label in scale.labels],
        "range": [-0.06, 1.1],
        "automargin": True,
    }


@figure.register
def _history(picture: HistoryPicture) -> go.Figure:
    rows = 2 if picture.front_x is not None and picture.front_y is not None else 1
    chart = make_subplots(rows=rows, cols=1, vertical_spacing=0.2)
    xs, ys = zip(*picture.curve, strict=True)
    line = {"color": FRONT_COLOUR, "width": 2.5}
    chart.add_trace(go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", showlegend=False), row=1, col=1)
    dot_x, dot_y, hovers = zip(*picture.dots, strict=True)
    chart.add_trace(
        go.Scatter(
            x=dot_x,
            y=dot_y,
            mode="markers",
            hovertext=hovers,
            hoverinfo="text",
            showlegend=False,
            marker={"color": FRONT_COLOUR, "size": 7},
        ),
        row=1,
        col=1,
    )
    chart.update_xaxes(axis(picture.x), row=1, col=1)
    chart.update_yaxes(axis(picture.y), row=1, col=1)
    if picture.front_x is not None and picture.front_y is not None:
        _add_moments(chart, picture)
        chart.update_xaxes(axis(picture.front_x), row=2, col=1)
        chart.update_yaxes(axis(picture.front_y), row=2, col=1)
    return chart.update_layout(
        height=100 + 380 * rows,
        margin={"t": 20, "b": 70},
        legend={**LEGEND, "y": 0.41},
    )


def _add_moments(chart: go.Figure, picture: HistoryPicture) -> None:
    for place, moment in enumerate(picture.moments):
        colour = _colour((place + 1) / len(picture.moments))
        xs, ys = zip(*moment.steps, strict=True)
        line = {"color": colour, "width": 2 + 2.5 * (len(picture.moments) - 1 - place)}
        chart.add_trace(go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", name=moment.label), 2, 1)
        xs, ys = zip(*moment.dots, strict=True)
        marker = {"color": colour, "size": 8}
        chart.add_trace(
            go.Scatter(x=xs, y=ys, mode="markers", marker=marker, hoverinfo="skip", showlegend=False), row=2, col=1
        )
