"""Reward functions that tests name by import path."""

import math
import os
import signal
import sys
import time
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


def moody(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Right or wrong as `letters`, but for one response in three, on which it fails."""
    if sum(map(ord, solution_str)) % 3 == 0:
        raise ValueError("not now")
    return letters(data_source, solution_str, ground_truth, extra_info)


def stubborn(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Does what no reward function should, where the response asks for it."""
    if solution_str == "sleep":
        time.sleep(600)
    if solution_str == "compute":
        return float(3**10**9 > 0)  # never lets go of the interpreter
    if solution_str == "die":
        os.kill(os.getpid(), signal.SIGSEGV)
    if solution_str == "leave":
        os._exit(3)
    if solution_str == "exit":
        sys.exit("enough")
    if solution_str == "alarm":
        signal.alarm(1)  # fails outside the main thread
    if solution_str == "print":
        print("no output of the trainer's")
    return 1.0


PROCESSES: list[int] = []


def counting(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> dict:
    """Tells how often this process called it, and which process that is."""
    PROCESSES.append(os.getpid())
    return {"score": 1.0, "calls": len(PROCESSES), "process": os.getpid()}
