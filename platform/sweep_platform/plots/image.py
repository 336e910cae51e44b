"""Pictures as PNG, SVG or PDF, with matplotlib's file back end: no display and no browser."""

from __future__ import annotations

from functools import singledispatch
from pathlib import Path
from textwrap import fill
from typing import Any, Literal

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox

from sweep_platform.plots.picture import FRONT_COLOUR, KNEE_COLOUR, OTHER_COLOUR, Axis, Dot, FrontierPicture

INK = "#202124"
FAINT = "#5f6368"
_TITLE_WIDTH = 75
"""Characters of a title's line, on a sheet of 8 inches."""
_CAPTION_WIDTH = 125
"""Characters of a caption's line, on such a sheet."""
_PLACES = ((-6, 6, "right"), (6, -15, "left"), (6, 6, "left"), (-6, -15, "right"), (-12, -4, "right"), (12, -4, "left"))
"""Where a dot's number may stand, best first: offsets in points, and which end is at the dot."""
_DIGIT, _LINE = 7.0, 10.0
"""Size of one digit of a number, in points."""


def write_image(picture: Any, path: Path) -> None:
    """Write the image in the format that the file name's ending says."""
    with rc_context({"svg.hashsalt": "sweep_platform", "text.parse_math": False}):
        figure(picture).savefig(path, dpi=160, facecolor="white", metadata=_metadata(path))


def _metadata(path: Path) -> dict[str, None] | None:
    """SVG and PDF carry their date unless told otherwise; the same picture should give the same file."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix.lower())


@singledispatch
def figure(picture: Any) -> Figure:
    """A picture as a matplotlib figure, 8 inches wide or more."""
    raise TypeError(type(picture))


@figure.register
def _frontier(picture: FrontierPicture) -> Figure:
    sheet = Figure(figsize=(8, 5), layout="constrained")
    axes = sheet.add_subplot()
    for dot in picture.dots:
        if dot.ellipse:
            axes.fill(*zip(*dot.ellipse, strict=True), color=_colour(dot), alpha=0.14, linewidth=0, zorder=1.5)
    _draw_dots(axes, [d for d in picture.dots if not d.on_front], "other trials", marker="o", size=5.0)
    if picture.steps:
        xs, ys = zip(*picture.steps, strict=True)
        axes.plot(xs, ys, color=FRONT_COLOUR, linewidth=2, alpha=0.45, zorder=2, label="frontier (numbers: trials)")
    _draw_dots(axes, [d for d in picture.dots if d.on_front and not d.knee], "", marker="o", size=7.5)
    _draw_dots(axes, [d for d in picture.dots if d.knee], "knee", marker="*", size=14.0)
    _dress(axes, picture)
    sheet.supxlabel(fill(picture.caption, _CAPTION_WIDTH), x=0.02, ha="left", fontsize=8, color=FAINT)
    sheet.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    sheet.draw_without_rendering()  # the layout settles where dots are on the sheet
    _label(axes, picture.dots, sheet.dpi / 72)
    return sheet


def _draw_dots(axes: Axes, dots: list[Dot], label: str, *, marker: str, size: float) -> None:
    """Dots of one kind over their error bars; those off the front are faint."""
    if not dots:
        return
    colour, front = _colour(dots[0]), dots[0].on_front
    xs, ys = [dot.x for dot in dots], [dot.y for dot in dots]
    errors = [dot.error or 0.0 for dot in dots]
    alpha = 0.9 if front else 0.35
    axes.errorbar(xs, ys, errors, fmt="none", ecolor=colour, elinewidth=1, capsize=2.5, alpha=alpha, zorder=2.5)
    axes.plot(
        xs,
        ys,
        linestyle="none",
        marker=marker,
        markersize=size,
        color=colour,
        alpha=1.0 if front else 0.7,
        markeredgecolor="white",
        markeredgewidth=0.8,
        zorder=3 if front else 2.5,
        label=label or None,
    )


def _label(axes: Axes, dots: tuple[Dot, ...], scale: float) -> None:
    """Number the front's dots where nothing is hidden; the knee first, and a dot with no free place goes without.

    `scale` is pixels a point.
    """
    taken = [box for dot in dots for box in _covered(axes, dot, scale)]
    for dot in sorted((dot for dot in dots if dot.on_front), key=lambda dot: not dot.knee):
        x, y = axes.transData.transform((dot.x, dot.y))
        for dx, dy, side in _PLACES:
            width = _DIGIT * len(str(dot.number))
            left = dx if side == "left" else dx - width
            box = Bbox.from_bounds(x + left * scale, y + dy * scale, width * scale, _LINE * scale)
            if box.count_overlaps(taken) == 0:
                taken.append(box)
                axes.annotate(
                    str(dot.number),
                    (dot.x, dot.y),
                    xytext=(dx, dy),
                    textcoords="offset points",
                    ha=side,
                    fontsize=9,
                    fontweight="bold",
                    color=_colour(dot),
                    path_effects=[withStroke(linewidth=2, foreground="white")],
                    zorder=4,
                )
                break


def _covered(axes: Axes, dot: Dot, scale: float) -> tuple[Bbox, Bbox]:
    """What a dot and its error bar take of the sheet, in pixels."""
    x, y = axes.transData.transform((dot.x, dot.y))
    _, top = axes.transData.transform((dot.x, dot.y + (dot.error or 0.0)))
    around = 4 * scale
    bar = Bbox.from_extents(x - scale, 2 * y - top, x + scale, top)
    return Bbox.from_extents(x - around, y - around, x + around, y + around), bar


def _colour(dot: Dot) -> str:
    if dot.knee:
        return KNEE_COLOUR
    return FRONT_COLOUR if dot.on_front else OTHER_COLOUR


def _dress(axes: Axes, picture: FrontierPicture) -> None:
    title = fill(picture.title, _TITLE_WIDTH)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK, pad=12)
    set_axis(axes, picture.x, "x")
    set_axis(axes, picture.y, "y")
    dress(axes)


def set_axis(axes: Axes, shown: Axis, which: Literal["x", "y"]) -> None:
    """Title, scale and ticks of one axis."""
    axes.set(**{f"{which}label": shown.title})
    if shown.log:
        axes.set(**{f"{which}scale": "log"})
        (axes.set_xmargin if which == "x" else axes.set_ymargin)(0.06)
    if shown.ticks:
        there = axes.xaxis if which == "x" else axes.yaxis
        there.set_ticks(shown.ticks, labels=shown.labels)
        there.set_minor_locator(NullLocator())


def dress(axes: Axes) -> None:
    """Faint frame and grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#dadce0")
    axes.tick_params(colors=FAINT, labelsize=9)
    axes.grid(True, color="#e8eaed", linewidth=0.8)
    axes.set_axisbelow(True)


def titled(sheet: Figure, title: str, caption: str) -> None:
    """Title above and caption below all of a sheet's parts."""
    wide = sheet.get_figwidth() / 8
    sheet.suptitle(fill(title, int(_TITLE_WIDTH * wide)), x=0.02, ha="left", fontsize=12, fontweight="bold", color=INK)
    sheet.supxlabel(fill(caption, int(_CAPTION_WIDTH * wide)), x=0.02, ha="left", fontsize=8, color=FAINT)
