"""Sweep specs: composed by Hydra, checked by pydantic and against the trainer, frozen."""

from __future__ import annotations

from sweep_platform.spec.check import check_spec
from sweep_platform.spec.domains import Choice, Domain, FloatRange, IntRange
from sweep_platform.spec.load import load_spec
from sweep_platform.spec.model import Budget, Hardware, Objective, Prior, SamplerSpec, SweepSpec

__all__ = [
    "Budget",
    "Choice",
    "Domain",
    "FloatRange",
    "Hardware",
    "IntRange",
    "Objective",
    "Prior",
    "SamplerSpec",
    "SweepSpec",
    "check_spec",
    "load_spec",
]
