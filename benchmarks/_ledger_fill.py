"""A ledger with one large sweep in it, written at once, and the commands that read it, timed."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from run_ledger import CostRecord, EvaluationRecord, Ledger
from run_ledger.database import Database
from run_ledger.models import Attempt, Cost, Evaluation, Observation, Trial
from sqlalchemy import insert, text
from sweep_platform.driver import Assignment, Crashed, open_sweep
from sweep_platform.home import Home
from sweep_platform.search import Searcher, params_hash
from sweep_platform.spec import SamplerSpec, SweepSpec

NAME = "large"
STEPS = (10, 20, 30)
SAMPLES = 16
"""Sampled answers of each trial's last evaluation."""


def spec(trials: int) -> SweepSpec:
    """A sweep of the simulated trainer; its sampler has no model, so that the driver's own time shows."""
    sections = {f"section_{i}": {f"field_{j}": j / 7 for j in range(8)} for i in range(4)}
    return SweepSpec.model_validate(
        {
            "name": NAME,
            "trainer": "toybox.trainer",
            "config": {"model": sections, "trainer": {"total_training_steps": STEPS[-1], "seconds": 0.0}},
            "objectives": [
                {"metric": "val/accuracy", "direction": "maximize"},
                {"metric": "cost/flops", "direction": "minimize"},
            ],
            "search": {"actor.lr": {"float": [0.01, 1.0], "log": True}, "actor.batch": {"int": [1, 8]}},
            "sampler": {"name": "random"},
            "budget": {"trials": trials},
        }
    )


def fill(url: str, trials: int) -> None:
    """Write a sweep of complete trials, each with an attempt, steps and an evaluation."""
    chance, wanted = random.Random(0), spec(trials)
    with Ledger.open(url) as ledger:
        sweep = ledger.create_sweep(NAME, wanted.to_dict(), wanted.identity(), wanted.seed)
    rows: dict[Any, list[dict[str, Any]]] = {model: [] for model in (Trial, Cost, Attempt, Observation, Evaluation)}
    for number in range(trials):
        _add(rows, number + 1, sweep.id, wanted, chance)
    database = Database(url)
    with database.writing() as session:
        for model, values in rows.items():
            session.execute(insert(model), values)
        if not url.startswith("sqlite"):
            for model in (Trial, Attempt, Observation):
                table = model.__tablename__
                sequence = f"setval(pg_get_serial_sequence('{table}', 'id'), (SELECT max(id) FROM {table}))"
                session.execute(text(f"SELECT {sequence}"))
    database.close()


def _add(
    rows: dict[Any, list[dict[str, Any]]], identity: int, sweep_id: int, wanted: SweepSpec, chance: random.Random
) -> None:
    """Put what makes a trial to the rows."""
    began = datetime.now(UTC) - timedelta(days=1) + timedelta(seconds=identity)
    params = {"actor.lr": 10 ** chance.uniform(-2, 0), "actor.batch": chance.randint(1, 8)}
    problems = [f"p{index}" for index in range(SAMPLES)]
    right = [chance.random() < 0.5 + 0.3 * params["actor.lr"] for _ in problems]
    accuracy, flops = statistics.mean(right), 1e12 * params["actor.batch"] * chance.uniform(1, 10)
    cost = {"flops": flops, "tokens": 10_000, "device_seconds": 1.0}
    metrics = {f"group/metric_{index}": index / 3 for index in range(30)}
    metrics |= {"val/accuracy": accuracy, "val/accuracy_se": statistics.stdev(map(float, right)) / SAMPLES**0.5}
    trial = {
        "id": identity,
        "sweep_id": sweep_id,
        "number": identity - 1,
        "state": "complete",
        "params": params,
        "params_hash": params_hash(params),
        "replicate": 0,
        "origin": "random",
        "sampler_state": {},
        "config": wanted.trial_config(params),
        "objective_values": [accuracy, flops],
        "metrics": metrics,
        "step": STEPS[-1],
        "total_steps": STEPS[-1],
        "attempts": 1,
        "started_at": began,
        "ended_at": began + timedelta(seconds=1),
    }
    rows[Trial].append(trial)
    rows[Cost].append({"trial_id": identity, **cost})
    rows[Attempt].append(
        {
            **{"id": identity, "trial_id": identity, "token": 0, "host": "node", "pid": 1, "ttl_s": 60.0},
            **{"lease_expires_at": began + timedelta(seconds=60), "started_at": began},
            **{"ended_at": began + timedelta(seconds=1), "exit_reason": "complete"},
        }
    )
    for place, step in enumerate(STEPS):
        observation = identity * len(STEPS) + place
        rows[Observation].append(
            {
                **{"id": observation, "trial_id": identity, "attempt_id": identity, "step": step, "metrics": metrics},
                **{"non_finite": [], "final": step == STEPS[-1], "at": began, **cost},
            }
        )
    for position, (problem, correct) in enumerate(zip(problems, right, strict=True)):
        rows[Evaluation].append(
            {
                **{"observation_id": observation, "position": position, "data_source": "toy", "problem_id": problem},
                **{"sample_index": 0, "prompt": "What is 6 x 7? " * 5, "response": "Six sevens are 42. " * 5},
                **{"answer": "42", "ground_truth": "42", "correct": correct, "response_length": 20},
            }
        )


def time_commands(folder: Path, url: str, environment: dict[str, str], times: int = 3) -> dict[str, float]:
    """Seconds of each command that reads the sweep, as a user waits for it: the best of some, as others run too."""
    python = [sys.executable, "-c", "from sweep_platform.cli import main; main()"]
    told = {**environment, "PLATFORM_HOME": str(folder), "PLATFORM_LEDGER": url}
    found = {}
    for command in (("status", NAME), ("status", NAME, "--json"), ("pareto", NAME), ("pareto", NAME, "--json")):
        spent = []
        for _ in range(times):
            began = time.perf_counter()
            subprocess.run([*python, *command], env=told, stdout=subprocess.DEVNULL, check=True)
            spent.append(time.perf_counter() - began)
        found[" ".join(command)] = min(spent)
    return found


def time_ask(folder: Path, url: str, trials: int, asks: int = 5) -> dict[str, float]:
    """Seconds until a driver gives out the next trial, on the median, without those that the searcher takes."""
    in_searcher: list[float] = []
    ask = Searcher.ask

    def timed(self: Searcher, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return ask(self, *arguments)
        finally:
            in_searcher.append(time.perf_counter() - began)

    spent = []
    vars(sys.modules[Searcher.__module__])["Searcher"].ask = timed
    try:
        with Ledger.open(url) as ledger, open_sweep(ledger, spec(trials + asks), Home(folder)) as driver:
            for _ in range(asks):
                began = time.perf_counter()
                given = driver.next_trial()
                spent.append(time.perf_counter() - began)
                assert isinstance(given, Assignment)
                driver.finish(given, Crashed("ValueError: not trained here", ""))
    finally:
        vars(sys.modules[Searcher.__module__])["Searcher"].ask = ask
    return {
        "driver_s": statistics.median(whole - part for whole, part in zip(spent, in_searcher, strict=True)),
        "searcher_s": statistics.median(in_searcher),
    }


def time_search(url: str, trials: int, asks: int = 5) -> dict[str, float]:
    """Seconds in which a sampler that models the trials gives the next candidate, on the median."""
    found = {}
    with Ledger.open(url) as ledger:
        sweep = ledger.find_sweep(NAME)
        assert sweep is not None
        records = ledger.trials(sweep.id)
    for sampler in ("tpe", "ehvi"):
        searcher = Searcher(spec(trials).model_copy(update={"sampler": SamplerSpec(name=sampler)}))
        for record in records:
            searcher.tell(record)
        searcher.ask(trials)  # what is imported once
        found[sampler] = statistics.median(_seconds(searcher.ask, trials + 1 + i) for i in range(asks))
    return found


def time_step(url: str, times: int = 20) -> float:
    """Seconds in which a step with 800 sampled answers is recorded, on the median."""
    answers = [
        EvaluationRecord(1, "toy", f"p{i}", 0, "6 x 7? " * 20, "42. " * 100, "42", "42", True, 9) for i in range(800)
    ]
    with Ledger.open(url) as ledger:
        lease = ledger.acquire_sweep(ledger.create_sweep("step", {}, "step", 0).id, "driver")
        trial = ledger.add_trial(lease, number=0, params={}, params_hash="0", config={}, origin="", sampler_state={})
        attempt = ledger.start_attempt(lease, trial.id, host="node", pid=1)

        def report(step: int) -> None:
            ledger.record_step(attempt, step=step, total_steps=99, metrics={}, cost=CostRecord(), samples=answers)

        return statistics.median(_seconds(report, step) for step in range(times))


def _seconds(work: Callable[[int], object], number: int) -> float:
    began = time.perf_counter()
    work(number)
    return time.perf_counter() - began


def environment() -> dict[str, str]:
    """Variables of commands that find this project and the simulated trainer."""
    root = Path(__file__).parent.parent
    parts = [str(root / "tests" / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(parts)}
