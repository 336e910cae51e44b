"""Multi-objective early stopping: which trials go on at a rung."""

from __future__ import annotations

from sweep_platform.pruning.halving import Halving

__all__ = ["Halving"]
