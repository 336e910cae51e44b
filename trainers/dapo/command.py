"""The trainer as a command of its own: `torchrun --nproc-per-node 4 -m dapo.train CONFIG [key=value ...]`.

Without torchrun it starts `trainer.n_gpus_per_node` processes itself. Each step is a line of JSON on standard output.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from dapo import trainer
from dapo.batch import Fault, StepMetrics
from dapo.config import Config
from dapo.errors import DapoError, DataError

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
"""Exit codes."""


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read a trainer's config, or the one in a file that `platform export` wrote.

    Args:
        path: YAML, which JSON is too.
        overrides: `dotted.key=value`, with values in YAML.

    Raises:
        DataError: it can't be read, or isn't valid; all faults.
    """
    need = "a config of this trainer in YAML, or a file that `platform export` wrote"
    try:
        tree = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(Fault(str(path), f"a file that can't be read ({reason})", need, "correct it")) from error
    if isinstance(tree, dict) and isinstance(tree.get("config"), dict):
        tree = tree["config"]
    if not isinstance(tree, dict):
        raise DataError(Fault(str(path), type(tree).__name__, need, "name such a file"))
    for override in overrides:
        _set(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise DataError(*(_fault(path, detail) for detail in error.errors(include_url=False))) from error


def _set(tree: dict[str, Any], override: str) -> None:
    """Put one `dotted.key=value` into a tree."""
    key, sign, text = override.partition("=")
    *sections, last = key.split(".")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        sign, value = "", None
    if not sign or not all((*sections, last)):
        raise DataError(Fault("override", repr(override), "dotted.key=value", "write it so"))
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            raise DataError(Fault("override", repr(override), f"a key: {section} is a value", "correct it"))
        tree = inner
    tree[last] = value


def _fault(path: Path, detail: Any) -> Fault:
    """One of pydantic's errors in the project's words."""
    place = f"{path}:{'.'.join(map(str, detail['loc']))}"
    if (word := str(detail["loc"][-1])) in Config.REPLACED and detail["type"] == "extra_forbidden":
        return Fault(place, repr(detail["input"])[:80], *Config.REPLACED[word])
    if detail["type"] == "extra_forbidden":
        return Fault(place, "an unknown key", "one that the trainer has", "correct or remove it")
    need = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("need ")
    need, _, do = need.partition("; ")
    return Fault(place, repr(detail["input"])[:80], need, do or "set it to such a value")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return the exit code."""
    parser = argparse.ArgumentParser("dapo.train", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    options = parser.parse_args(arguments)
    leads = os.environ.get("RANK", "0") == "0"
    logging.basicConfig(level=logging.INFO if leads else logging.ERROR, format="%(message)s")
    try:
        config = read_config(options.config, options.overrides)
        started = config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
        faults = trainer.preflight(config, int(os.environ.get("WORLD_SIZE", started)))
        if faults := [*faults, *trainer.machine_faults(config)]:
            raise DataError(*(fault._replace(key=f"{options.config}:{fault.key}") for fault in faults))
    except DataError as error:
        if leads:
            sys.stderr.write(f"{error}\n")
        return REFUSED
    return _trained(config)


def _trained(config: Config) -> int:
    from dapo.parallel import processes_end_together

    try:
        trainer.prepare(config)
        with processes_end_together():
            trainer.train(config, _tell)
    except DapoError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on from the last checkpoint, if the run keeps any\n")
        return INTERRUPTED
    return 0


def _tell(step: StepMetrics) -> bool:
    told = {"step": step.step, "total_steps": step.total_steps, "final": step.final}
    sys.stdout.write(json.dumps({**told, "cost": asdict(step.cost), "metrics": step.metrics}) + "\n")
    sys.stdout.flush()
    return True
