"""Pictures of a sweep: one preparation (`picture`), drawn as an interactive page or as an image."""

from __future__ import annotations

from sweep_platform.plots.picture import Picture, evaluation_size
from sweep_platform.plots.save import save_frontier

__all__ = ["Picture", "evaluation_size", "save_frontier"]
