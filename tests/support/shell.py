"""The command `platform` as a user calls it, in this process: quick, and with its two streams apart."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweep_platform.cli import app
from typer.testing import CliRunner

TOY = """\
name: toy
trainer: toybox.trainer
objectives:
  - {metric: val/accuracy, direction: maximize}
  - {metric: cost/flops, direction: minimize}
search:
  actor.lr: {float: [0.01, 1.0], log: true}
  actor.batch: {int: [1, 8]}
sampler: random
budget: {trials: 6}
"""
"""A spec of the toy trainer, whose sweep takes a second."""


@dataclass(frozen=True)
class Reply:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON, the whole of it; NaN is none."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is no JSON")

        return json.loads(self.out, parse_constant=refuse)


@dataclass(frozen=True)
class Shell:
    """Calls commands with a home of its own."""

    home: Path
    mlflow: Path
    """MLflow's database; one for many homes, as making one takes seconds."""

    def __call__(self, *arguments: object, **environment: str) -> Reply:
        """Run `platform ARGUMENTS`; what isn't meant for a user's eyes is an error here."""
        told = {"PLATFORM_HOME": str(self.home), "MLFLOW_TRACKING_URI": f"sqlite:///{self.mlflow}", **environment}
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], env=told)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert "Traceback" not in result.output
        return Reply(result.exit_code, result.stdout, result.stderr)
