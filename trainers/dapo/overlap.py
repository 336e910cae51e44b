"""Problems that stand in both `data.train` and `data.val` are never trained on: accuracy on them would say nothing."""

from __future__ import annotations

import logging
from dataclasses import replace

from dapo.batch import Fault, Identity, Problem
from dapo.config import Config
from dapo.data import MAX_NAMED, Dataset
from dapo.errors import DataError
from dapo.public_data import statement

UNSEEN = "problems that no trial is evaluated on, since the search chooses by those"

logger = logging.getLogger(__name__)


def overlap_fault(train: Dataset, val: Dataset, config: Config) -> Fault | None:
    """Return the fault of two sets of which nothing is left: no problem to evaluate on, or none to train on.

    Problems are the same if their texts are, but for case, spacing and DAPO's instruction.
    """
    trained, evaluated = _statements(train), _statements(val)
    if evaluated <= trained:
        got = f"{config.data.val!r}, all {len(evaluated)} problems of which stand in data.train"
        return Fault("data.val", got, "problems that aren't trained on", "name another set")
    if trained <= evaluated:
        got = f"{config.data.train!r}, all {len(trained)} problems of which stand in data.val"
        return Fault("data.train", got, "problems that aren't evaluated on", "name another set")
    return None


def seen_fault(searched: Dataset, confirming: Dataset, source: str) -> Fault | None:
    """Return the fault of problems, named `source`, that are to confirm a search and that it evaluates on itself."""
    evaluated = _statements(searched)
    seen = [problem.problem_id for problem in confirming.problems if _statement(problem) in evaluated]
    if not seen:
        return None
    got = f"{source!r}, {len(seen)} of whose {len(confirming.problems)} problems the search evaluates on"
    return Fault("data.val", f"{got} ({', '.join(seen[:MAX_NAMED])})", UNSEEN, "take these out, or name another set")


def held_apart(train: Dataset, val: Dataset, config: Config) -> Dataset:
    """Return the training set without the problems of the validation set, and say how many those were.

    Raises:
        DataError: all of one set stand in the other.
    """
    fault = overlap_fault(train, val, config)
    if fault is not None:
        raise DataError(fault)
    evaluated = _statements(val)
    shared = [problem.problem_id for problem in train.problems if _statement(problem) in evaluated]
    if not shared:
        return train
    logger.warning(
        "data.train: %d problems also stand in data.val and are left out of training: %s%s",
        len(shared),
        ", ".join(shared[:MAX_NAMED]),
        ", …" if len(shared) > MAX_NAMED else "",
    )
    kept = tuple(problem for problem in train.problems if _statement(problem) not in evaluated)
    return replace(train, problems=kept)


def _statements(dataset: Dataset) -> set[Identity]:
    return {_statement(problem) for problem in dataset.problems}


def _statement(problem: Problem) -> Identity:
    return statement(problem.problem), problem.messages
