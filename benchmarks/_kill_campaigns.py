"""Which sweeps `benchmarks.kills` disturbs, how, and how often."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kills.campaign import Campaign
from kills.disturbances import NO_ROOM, RAY, RAY_SOON, WORKER, Disturbance, Server, signals, sqlite_locked
from kills.sweep import Shaken, toy_spec
from sweep_platform.tracking import Store

AT_ONCE = 20
"""Disturbances of one sweep, at most."""


@dataclass(frozen=True)
class Plan:
    """Sweeps of one kind."""

    trials: str
    """Simulated or real."""
    executor: str
    ledger: str
    spec: dict[str, Any]
    share: float
    """Of the disturbances over such trials."""
    longest_s: float
    """From a start to a disturbance."""


def real_spec() -> dict[str, Any]:
    """A sweep of the embedded model, three short trials."""
    return {
        "defaults": [{"model": "tiny"}, {"data": "arithmetic"}, {"hardware": "cpu"}, "_self_"],
        "name": "shaken",
        "trainer": "dapo",
        "data": {"train_batch_size": 8, "gen_batch_size": 8},
        "config": {
            "rollout": {"val_kwargs": {"n": 1}},
            "algorithm": {"filter_groups": {"on_exhausted": "train_partial"}},
            "trainer": {"total_training_steps": 6, "test_freq": 3, "save_freq": 2},
        },
        "objectives": [
            {"metric": "val/accuracy", "direction": "maximize"},
            {"metric": "cost/flops", "direction": "minimize"},
        ],
        "search": {
            "actor.optim.lr": {"float": [1e-4, 1e-3], "log": True},
            "actor.clip_ratio_high": {"float": [0.2, 0.4]},
        },
        "sampler": {"name": "tpe", "n_startup": 2},
        "budget": {"trials": 3, "concurrency": 2},
        "hardware": {"cores": 2},
    }


PLANS = (
    Plan("simulated", "inline", "SQLite", toy_spec(6, 6, 0.08), 0.5, 0.8),
    Plan("simulated", "inline", "PostgreSQL", toy_spec(6, 6, 0.08), 0.3, 0.8),
    # A trial lost three times is unknown to a sampler until the next command, so that later ones may differ.
    Plan("simulated", "ray", "SQLite", toy_spec(8, 6, 0.6, sampler={"name": "random"}), 0.2, 20.0),
    Plan("real", "inline", "SQLite", real_spec(), 0.6, 12.0),
    Plan("real", "ray", "SQLite", {**real_spec(), "sampler": {"name": "random"}}, 0.4, 30.0),
)


def run(folder: Path, simulated: int, real: int) -> list[dict[str, Any]]:
    """Run every plan to its number of disturbances; what was seen, a row for each sweep."""
    os.environ.setdefault(
        "PLATFORM_CACHE", str(Path.home() / ".cache" / "sweep-platform")
    )  # commands have another home
    store = Store(f"sqlite:///{folder / 'empty.db'}", folder / "artifacts")
    store.client.search_experiments()  # makes the database
    server, rows = Server(folder / "postgresql"), []
    try:
        for plan in PLANS:
            wanted = round(plan.share * (simulated if plan.trials == "simulated" else real))
            rows += _to_the_end(plan, wanted, folder, server)
    finally:
        server.close()
    return rows


def _to_the_end(plan: Plan, wanted: int, folder: Path, server: Server) -> list[dict[str, Any]]:
    """Disturb as many sweeps as it takes."""
    name = f"{plan.trials}-{plan.executor}-{plan.ledger}"
    calm = Shaken(folder / f"{name}-calm", plan.spec, plan.executor, folder / "empty.db")
    command = calm.start()
    if command.end(600.0) != 0:
        raise RuntimeError(f"the undisturbed sweep fails: {command.said}")
    unbroken, rows, left = calm.read().result(), [], wanted
    while left > 0:
        seed = len(rows)
        shaken, kinds = _shaken(plan, folder / f"{name}-{seed}", folder / "empty.db", server)
        campaign = Campaign(shaken, unbroken, kinds, seed, plan.longest_s)
        broken = ""
        try:
            campaign.run(min(left, AT_ONCE))
        except AssertionError as error:
            broken = str(error)
        described = {key: value for key, value in asdict(plan).items() if key in ("trials", "executor", "ledger")}
        rows.append({**described, "seed": seed, "struck": campaign.counts, "looks": campaign.looks, "broken": broken})
        print(rows[-1], file=sys.stderr, flush=True)
        left -= max(1, campaign.counts.total())  # one that breaks at once, too
    return rows


def _shaken(plan: Plan, folder: Path, mlflow: Path, server: Server) -> tuple[Shaken, Mapping[str, Disturbance]]:
    """A sweep in a folder of its own, and what can happen to it."""
    if plan.ledger == "PostgreSQL":
        shaken = Shaken(folder, plan.spec, plan.executor, mlflow, server.database(folder.name))
        own = server.disturbances(folder.name)
    else:
        shaken = Shaken(folder, plan.spec, plan.executor, mlflow, environment=dict(RAY_SOON))
        own = {"ledger locked": sqlite_locked(shaken)}
    if plan.executor == "ray":
        return shaken, {**signals(), "trial's process": WORKER, **RAY}
    return shaken, {**signals(), "failing writes": NO_ROOM, **own}
