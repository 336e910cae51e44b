"""Reward functions that tests name by import path."""

import math
from collections.abc import Mapping

EARLY = frozenset("abcdefghijklm")


def letters(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Right if there is a letter a-m: an untrained model does so now and then, and learns it fast."""
    return float(not EARLY.isdisjoint(solution_str))


def detailed(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> dict:
    """The same as a dict, with a key of its own."""
    early = sum(letter in EARLY for letter in solution_str)
    return {"score": float(early > 0), "acc": early > 0, "early": early, "pred": "early" if early else "late"}


def wrong(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """No answer is right."""
    return 0.0


def right(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Every answer is right."""
    return 1.0


def fragile(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> object:
    """Returns what the response names, or fails on it."""
    kinds = {"nan": math.nan, "text": "1.0", "none": None, "no score": {"acc": 1.0}, "int": 1, "bool": True}
    if solution_str == "raise":
        raise KeyError("no such thing")
    return kinds.get(solution_str, {"score": 0.5, "f1": 0.25, "note": "kept out", "acc": 0})
