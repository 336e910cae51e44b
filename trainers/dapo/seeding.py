"""Random numbers by name: each draw has a generator made from what it is for, so there's no state to save."""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, *purpose: object) -> int:
    """Return a number below 2**63 that depends on `seed` and `purpose` only."""
    digest = hashlib.sha256(repr((seed, *purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_for(seed: int, *purpose: object) -> torch.Generator:
    """Return a CPU generator that depends on `seed` and `purpose` only.

    Generation round 17 of a run draws the same numbers whether the run was interrupted before it or not, and
    whatever else drew numbers in between.
    """
    return torch.Generator().manual_seed(seed_for(seed, *purpose))
