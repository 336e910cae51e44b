"""The executor's part, played by hand: one attempt after the other, reported step by step."""

from typing import Any

from sweep_platform.driver import Assignment, Driver, Ended, Outcome
from toybox.trainer import Config, Cost, Step, accuracy


def assigned(driver: Driver) -> Assignment:
    assignment = driver.next_trial()
    assert isinstance(assignment, Assignment), assignment
    return assignment


def told(assignment: Assignment, step: int, **changes: Any) -> Step:
    """What the toy trainer would report after a step."""
    config = Config.model_validate(assignment.config)
    total = config.trainer.total_training_steps
    metrics = {"val/accuracy": accuracy(config, step)} | changes.pop("metrics", {})
    flops = 1e9 * config.actor.batch * step
    return Step(step, total, metrics, Cost(flops=flops, tokens=step), final=step == total, **changes)


def run(driver: Driver, assignment: Assignment, outcome: Outcome | None = None, until: int = 4) -> None:
    for step in range(1, until + 1):
        assert driver.report(assignment, told(assignment, step))
    driver.finish(assignment, outcome or Ended())
