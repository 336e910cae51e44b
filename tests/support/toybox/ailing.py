"""The trainer without training, with an opinion of its runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toybox.trainer import Config, preflight, prepare, train

__all__ = ["Config", "examine", "preflight", "prepare", "train"]


@dataclass(frozen=True)
class Finding:
    name: str
    evidence: str
    advice: tuple[str, ...]


def examine(config: Config, history: Sequence[Mapping[str, float]]) -> list[Finding]:
    """Small batches are called wasteful, and so is a low accuracy at the end."""
    told = history[-1]["val/accuracy"]
    found = [Finding("too timid", f"accuracy {told:.2f}", ("raise actor.lr",))] if told < 0.4 else []
    if config.actor.batch < 8:
        found.append(
            Finding("small batch", f"{config.actor.batch} prompts in {len(history)} steps", ("raise it", "or not"))
        )
    return found
