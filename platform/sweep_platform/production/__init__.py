"""From a trial to production: the chosen config as a file, and running that file again."""

from __future__ import annotations

from sweep_platform.production.document import Production, export, load_production
from sweep_platform.production.run import ProductionResult, run_production
from sweep_platform.production.warm import run_warmstart

__all__ = ["Production", "ProductionResult", "export", "load_production", "run_production", "run_warmstart"]
