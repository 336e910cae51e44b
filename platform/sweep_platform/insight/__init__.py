"""What a sweep teaches beside its frontier: what mattered, how values go together, and how the frontier grew."""

from __future__ import annotations

from sweep_platform.insight.material import Absent, Material
from sweep_platform.insight.pictures import NAMES, pictures

__all__ = ["NAMES", "Absent", "Material", "pictures"]
