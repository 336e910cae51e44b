"""The frontier picture as PNG, SVG or PDF, with matplotlib's file back end: no display and no browser."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sweep_platform.plots.picture import FRONT_COLOUR, KNEE_COLOUR, OTHER_COLOUR, Dot, Picture

_INK = "#202124"
_FAINT = "#5f6368"


def write_image(picture: Picture, path: Path) -> None:
    """Write the image in the format that the file name's ending says."""
    with rc_context({"svg.hashsalt": "sweep_platform"}):
        figure(picture).savefig(path, dpi=160, facecolor="white", metadata=_metadata(path))


def _metadata(path: Path) -> dict[str, None] | None:
    """SVG and PDF carry their date unless told otherwise; the same picture should give the same file."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())


def figure(picture: Picture) -> Figure:
    """The picture as a matplotlib figure, 8 × 5 inches."""
    sheet = Figure(figsize=(8, 5), layout="constrained")
    axes = sheet.add_subplot()
    _draw_dots(axes, [d for d in picture.dots if not d.on_front], "other trials", marker="o", size=5.5)
    if picture.steps:
        xs, ys = zip(*picture.steps, strict=True)
        axes.plot(xs, ys, color=FRONT_COLOUR, linewidth=2, alpha=0.45, zorder=2, label="frontier")
    _draw_dots(axes, [d for d in picture.dots if d.on_front and not d.knee], "", marker="o", size=7.5)
    _draw_dots(axes, [d for d in picture.dots if d.knee], "knee", marker="*", size=14.0)
    for dot in picture.dots:
        if dot.on_front:
            _label(axes, dot)
    _dress(axes, picture)
    sheet.supxlabel(picture.caption, x=0.02, ha="left", fontsize=8, color=_FAINT)
    return sheet


def _draw_dots(axes: Axes, dots: list[Dot], label: str, *, marker: str, size: float) -> None:
    if not dots:
        return
    colour = _colour(dots[0])
    axes.errorbar(
        [dot.x for dot in dots],
        [dot.y for dot in dots],
        yerr=[dot.error or 0.0 for dot in dots],
        fmt=marker,
        markersize=size,
        color=colour,
        markeredgecolor="white",
        markeredgewidth=0.8,
        ecolor=colour,
        elinewidth=1.0,
        capsize=2.5,
        zorder=1 if label == "other trials" else 3,
        label=label or None,
    )


def _label(axes: Axes, dot: Dot) -> None:
    axes.annotate(
        str(dot.number),
        (dot.x, dot.y),
        xytext=(-6, 7),
        textcoords="offset points",
        ha="right",
        fontsize=9,
        fontweight="bold",
        color=_colour(dot),
    )


def _colour(dot: Dot) -> str:
    if dot.knee:
        return KNEE_COLOUR
    return FRONT_COLOUR if dot.on_front else OTHER_COLOUR


def _dress(axes: Axes, picture: Picture) -> None:
    axes.set_title(picture.title, loc="left", fontsize=12, fontweight="bold", color=_INK, pad=12)
    axes.set_xlabel(picture.x.title, color=_INK)
    axes.set_ylabel(picture.y.title, color=_INK)
    if picture.x.log:
        axes.set_xscale("log")
        axes.set_xticks(picture.x.ticks, picture.x.labels)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(x=0.06)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#dadce0")
    axes.tick_params(colors=_FAINT, labelsize=9)
    axes.grid(True, color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
