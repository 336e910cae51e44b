"""All pictures beside the frontier, by name."""

from __future__ import annotations

from collections.abc import Callable

from sweep_platform.insight.contours import contours
from sweep_platform.insight.history import history
from sweep_platform.insight.importance import importance
from sweep_platform.insight.material import Absent, Material
from sweep_platform.insight.parallel import parallel
from sweep_platform.plots.insight_pictures import InsightPicture

_MAKERS: dict[str, Callable[[Material], InsightPicture | Absent]] = {
    "importance": importance,
    "parallel": parallel,
    "contour": contours,
    "history": history,
}
NAMES = tuple(_MAKERS)


def pictures(material: Material) -> dict[str, InsightPicture | Absent]:
    """Each picture by name, or what it needs to be drawn."""
    return {name: make(material) for name, make in _MAKERS.items()}
