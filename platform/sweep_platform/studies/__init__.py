"""Sweeps as Optuna studies, and studies as earlier results of a sweep. Optuna is loaded by the first use."""

from __future__ import annotations

from sweep_platform.studies.export import Exported, export_study
from sweep_platform.studies.importing import Imported, import_study

__all__ = ["Exported", "Imported", "export_study", "import_study"]
