"""The pictures beside the frontier as matplotlib figures; importing this teaches `image.figure` to draw them."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from sweep_platform.plots.image import FAINT, INK, dress, figure, set_axis, titled, write_image
from sweep_platform.plots.insight_pictures import (
    BarPanel,
    ContourPicture,
    HistoryPicture,
    ImportancePicture,
    ParallelPicture,
    Scale,
    SurfacePanel,
)
from sweep_platform.plots.picture import FRONT_COLOUR, KNEE_COLOUR, OTHER_COLOUR, SHADES

__all__ = ["figure", "write_image"]

_MAP = LinearSegmentedColormap.from_list("shades", SHADES)
_RIGHT = 0.8
"""Place from which labels stand to the left of their marks."""
_LEVELS = [level / 10 for level in range(11)]


@figure.register
def _importance(picture: ImportancePicture) -> Figure:
    count = len(picture.panels)
    sheet = Figure(
        figsize=(8, 1.2 + sum(0.6 + 0.3 * len(panel.bars) for panel in picture.panels)), layout="constrained"
    )
    for axes, panel in zip(sheet.subplots(count, 1, squeeze=False)[:, 0], picture.panels, strict=True):
        _draw_bars(axes, panel)
    titled(sheet, picture.title, picture.caption)
    return sheet


def _draw_bars(axes: Axes, panel: BarPanel) -> None:
    bars = panel.bars[::-1]
    rows = range(len(bars))
    shares = [bar.share for bar in bars]
    errors = [[bar.share - bar.low for bar in bars], [bar.high - bar.share for bar in bars]]
    colours = [FRONT_COLOUR if bar.share > bar.chance else OTHER_COLOUR for bar in bars]
    axes.barh(rows, shares, color=colours, height=0.65, alpha=0.85)
    axes.errorbar(shares, rows, xerr=errors, fmt="none", ecolor=INK, elinewidth=1, capsize=2.5, alpha=0.7)
    chance = [bar.chance for bar in bars]
    axes.plot(chance, rows, "|", color=KNEE_COLOUR, markersize=11, markeredgewidth=2.5, label="what chance reaches")
    dress(axes)
    axes.set_yticks(rows, [bar.label for bar in bars])
    axes.xaxis.set_major_formatter("{x:.0%}")
    axes.set_xlim(left=0)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.grid(False, axis="y")
    axes.legend(loc="lower right", frameon=False, fontsize=8)


@figure.register
def _parallel(picture: ParallelPicture) -> Figure:
    sheet = Figure(figsize=(max(8.0, 1.3 * len(picture.scales)), 5), layout="constrained")
    axes = sheet.add_subplot()
    across = range(len(picture.scales))
    for line in sorted(picture.lines, key=lambda line: (line.on_front, line.shade)):
        width, alpha = (2.6, 0.95) if line.on_front else (1.1, 0.5)
        axes.plot(across, line.places, color=_MAP(line.shade), linewidth=width, alpha=alpha, marker="o", markersize=3)
    for place, scale in enumerate(picture.scales):
        axes.axvline(place, color="#dadce0", linewidth=1, zorder=0)
        for tick, label in zip(scale.ticks, scale.labels, strict=True):
            axes.text(place + 0.04, tick, label, fontsize=7.5, color=FAINT, va="center")
    axes.set_xticks(across, [scale.title.replace("_", "_\n") for scale in picture.scales], fontsize=8, color=INK)
    axes.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    axes.set_yticks([])
    axes.set_ylim(-0.2, 1.08)
    axes.set_xlim(-0.2, len(across) - 0.4)
    axes.spines[:].set_visible(False)
    _add_bar(sheet, axes, picture.shade)
    titled(sheet, picture.title, picture.caption)
    return sheet


def _add_bar(sheet: Figure, axes: Axes, shade: Scale) -> None:
    bar = sheet.colorbar(ScalarMappable(Normalize(0, 1), _MAP), ax=axes, aspect=30, pad=0.02)
    bar.set_ticks(shade.ticks, labels=shade.labels, fontsize=8, color=FAINT)
    bar.set_label(shade.title, fontsize=9, color=INK)
    bar.outline.set_visible(False)


@figure.register
def _contour(picture: ContourPicture) -> Figure:
    count = len(picture.panels)
    sheet = Figure(figsize=(8, 1 + 3.8 * count), layout="constrained")
    for axes, panel in zip(sheet.subplots(count, 1, squeeze=False)[:, 0], picture.panels, strict=True):
        _draw_surface(sheet, axes, panel)
    titled(sheet, picture.title, picture.caption)
    return sheet


def _draw_surface(sheet: Figure, axes: Axes, panel: SurfacePanel) -> None:
    fine = [place / (len(panel.grid) - 1) for place in range(len(panel.grid))]
    axes.contourf(fine, fine, panel.grid, levels=_LEVELS, cmap=_MAP, vmin=0, vmax=1)
    axes.contour(fine, fine, panel.grid, levels=_LEVELS, colors="white", linewidths=0.5)
    xs, ys = [mark.x for mark in panel.marks], [mark.y for mark in panel.marks]
    axes.plot(xs, ys, "o", color="white", markeredgecolor="black", markersize=5)
    for mark in panel.marks:
        axes.annotate(
            mark.label,
            (mark.x, mark.y),
            xytext=(-5 if mark.x > _RIGHT else 5, 0),
            textcoords="offset points",
            ha="right" if mark.x > _RIGHT else "left",
            va="center",
            color="white",
            fontsize=8,
            fontweight="bold",
            path_effects=[withStroke(linewidth=1.5, foreground="#333333")],
        )
    dress(axes)
    axes.grid(False)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.set_xlabel(panel.x.title, color=INK)
    axes.set_ylabel(panel.y.title, color=INK)
    axes.set_xticks(panel.x.ticks, panel.x.labels)
    axes.set_yticks(panel.y.ticks, panel.y.labels)
    axes.set(xlim=(-0.06, 1.06), ylim=(-0.06, 1.1))
    _add_bar(sheet, axes, panel.shade)


@figure.register
def _history(picture: HistoryPicture) -> Figure:
    rows = 1 if picture.front_x is None or picture.front_y is None else 2
    sheet = Figure(figsize=(8, 1 + 3.2 * rows), layout="constrained")
    panels: list[Axes] = list(sheet.subplots(rows, 1, squeeze=False)[:, 0])
    panels[0].plot(*zip(*picture.curve, strict=True), color=FRONT_COLOUR, linewidth=2)
    xs, ys, _ = zip(*picture.dots, strict=True)
    panels[0].plot(xs, ys, "o", color=FRONT_COLOUR, markersize=4)
    dress(panels[0])
    set_axis(panels[0], picture.x, "x")
    set_axis(panels[0], picture.y, "y")
    if picture.front_x is not None and picture.front_y is not None:
        for place, moment in enumerate(picture.moments):
            colour = _MAP((place + 1) / len(picture.moments))
            panels[1].plot(
                *zip(*moment.steps, strict=True),
                color=colour,
                linewidth=1.5 + 2 * (len(picture.moments) - 1 - place),
                label=moment.label,
            )
            panels[1].plot(*zip(*moment.dots, strict=True), "o", color=colour, markersize=5)
        dress(panels[1])
        set_axis(panels[1], picture.front_x, "x")
        set_axis(panels[1], picture.front_y, "y")
        panels[1].legend(loc="lower right", frameon=False, fontsize=8)
    titled(sheet, picture.title, picture.caption)
    return sheet
