"""What the pictures beside the frontier show, before anything draws them: the same for page and image.

Where parameters are compared, each has a scale from 0 to 1 with labelled ticks, so that logarithmic ranges, steps and
names are all drawn alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from sweep_platform.plots.picture import Axis


@dataclass(frozen=True, slots=True)
class Scale:
    """A parameter's or an objective's range, from 0 to 1."""

    title: str
    ticks: tuple[float, ...]
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """One parameter's importance."""

    label: str
    share: float
    """Of all parameters' importance for the objective, 0 … 1."""
    low: float
    high: float
    """What it becomes with other trials and within their errors."""
    chance: float
    """What a parameter without any effect would reach in one of twenty cases."""


@dataclass(frozen=True, slots=True)
class BarPanel:
    """The importance of all parameters for one objective."""

    title: str
    bars: tuple[Bar, ...]
    """The greatest first."""


@dataclass(frozen=True, slots=True)
class ImportancePicture:
    """Which parameters decide about which objective."""

    title: str
    caption: str
    panels: tuple[BarPanel, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """One trial across all scales."""

    number: int
    places: tuple[float, ...]
    """On each scale; below 0 where the parameter isn't active."""
    shade: float
    """0 is the worst of the first objective, 1 the best."""
    on_front: bool
    hover: str


@dataclass(frozen=True, slots=True)
class ParallelPicture:
    """Parallel coordinates: every trial's values, side by side."""

    title: str
    caption: str
    scales: tuple[Scale, ...]
    lines: tuple[Line, ...]
    shade: Scale
    """Of the colours."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Trials at one place of a surface."""

    label: str
    """Their numbers."""
    x: float
    y: float
    hover: str


@dataclass(frozen=True, slots=True)
class SurfacePanel:
    """One objective over two parameters."""

    title: str
    x: Scale
    y: Scale
    grid: tuple[tuple[float, ...], ...]
    """Shades, rows from the lowest y: 0 is the worst that is shown, 1 the best."""
    shade: Scale
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class ContourPicture:
    """Each objective over the two numbers that matter most for it."""

    title: str
    caption: str
    panels: tuple[SurfacePanel, ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """The front as it was after some of the trials."""

    label: str
    steps: tuple[tuple[float, float], ...]
    """Corners of its step line."""
    dots: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class HistoryPicture:
    """The frontier over time: how much was found for how much compute, and the front at several moments."""

    title: str
    caption: str
    x: Axis
    y: Axis
    curve: tuple[tuple[float, float], ...]
    """Corners of the step line."""
    dots: tuple[tuple[float, float, str], ...]
    """x, y and hover text of each trial."""
    front_x: Axis | None
    front_y: Axis | None
    """Of the fronts; None unless two objectives are traded off."""
    moments: tuple[Moment, ...]
    """The earliest first."""


InsightPicture = ImportancePicture | ParallelPicture | ContourPicture | HistoryPicture
