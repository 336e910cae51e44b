"""Pictures of a sweep: one description of each (`picture`, `insight_pictures`), drawn as a page or as an image."""

from __future__ import annotations

from sweep_platform.plots.picture import FrontierPicture, evaluation_size
from sweep_platform.plots.save import save_frontier, save_picture

__all__ = ["FrontierPicture", "evaluation_size", "save_frontier", "save_picture"]
