"""The search: which candidate comes next, and can it run. Optuna is loaded by the first suggestion."""

from __future__ import annotations

from sweep_platform.search.feasibility import Feasibility, Limits
from sweep_platform.search.searcher import Refused, Searcher, SpaceExhausted, Suggestion
from sweep_platform.search.space import Impossible, Space, params_hash

__all__ = [
    "Feasibility",
    "Impossible",
    "Limits",
    "Refused",
    "Searcher",
    "SpaceExhausted",
    "Space",
    "Suggestion",
    "params_hash",
]
