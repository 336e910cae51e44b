"""Kills drawn by a seed, and two drivers on one sweep. The long campaign is `python -m benchmarks kills`."""

import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kills.campaign import Campaign
from kills.command import Command
from kills.disturbances import NO_ROOM, RAY_SOON, WORKER, members, signals, sqlite_locked
from kills.sweep import Shaken, check_ledger, check_mlflow, toy_spec
from sweep_platform.tracking import Store

pytestmark = pytest.mark.slow

LEASE_S = 1.0
SPEC = toy_spec(trials=6, steps=5, seconds=0.05)
LEAST_S = 6 * 5 * 0.05
"""Which the sweep needs at least."""
LONGEST_S = 0.2


@pytest.fixture(scope="module", autouse=True)
def path() -> Any:
    """What commands import comes from here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(entry for entry in sys.path if entry))
        yield


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty database of MLflow's."""
    folder = tmp_path_factory.mktemp("mlflow")
    store = Store(f"sqlite:///{folder / 'empty.db'}", folder / "artifacts")
    store.client.search_experiments()
    return folder / "empty.db"


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, mlflow: Path) -> list[tuple[Any, ...]]:
    """What the sweep comes to if nobody disturbs it."""
    calm = Shaken(tmp_path_factory.mktemp("calm"), SPEC, "inline", mlflow)
    command = calm.start()
    assert command.end() == 0, command.said
    check_mlflow(calm, calm.read(), equal=True)
    return calm.read().result()


def test_twenty_disturbances_at_random_instants(tmp_path: Path, mlflow: Path, unbroken: list[tuple[Any, ...]]) -> None:
    shaken = Shaken(tmp_path / "shaken", SPEC, "inline", mlflow)
    kinds = {**signals(), "failing writes": NO_ROOM, "locked": sqlite_locked(shaken)}
    campaign = Campaign(shaken, unbroken, kinds, seed=5, longest_s=LONGEST_S)
    campaign.run(20)
    assert campaign.counts.total() >= LEAST_S / LONGEST_S - 1


def wait_for_step(shaken: Shaken, steps: int) -> None:
    limit = time.monotonic() + 60
    while sum(map(len, shaken.logs().values())) < steps:
        assert time.monotonic() < limit, "no step in a minute"
        time.sleep(0.01)


def locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0.0, isolation_level=None)) as database:
        try:
            database.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
    return False


@contextmanager
def frozen(command: Command, shaken: Shaken) -> Iterator[None]:
    """Stop a command between its transactions: nobody takes the SQLite lock of a frozen process from it."""
    files = [shaken.folder / "ledger.db", shaken.folder / "mlflow.db"]
    command.signal(signal.SIGSTOP)
    while any(map(locked, files)):
        command.signal(signal.SIGCONT)
        time.sleep(0.003)
        command.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        command.signal(signal.SIGCONT)


def ended(command: Command) -> tuple[int, str]:
    code = command.end()
    assert "Traceback" not in command.said
    return code, command.said


def test_a_second_driver_is_refused_and_a_frozen_one_fenced_off(
    tmp_path: Path, mlflow: Path, unbroken: list[tuple[Any, ...]]
) -> None:
    shaken = Shaken(tmp_path / "shaken", SPEC, "inline", mlflow)
    first = shaken.start(lease_s=LEASE_S)
    wait_for_step(shaken, 3)
    code, said = ended(shaken.start(lease_s=LEASE_S))
    assert code == 2 and "ledger: got sweep shaken@1, which " in said and "wait for that process" in said

    with frozen(first, shaken):
        time.sleep(1.5 * LEASE_S)
        before = sum(map(len, shaken.logs().values()))
        second = shaken.start()
        wait_for_step(shaken, before + 2)
    # The first goes on in the middle of a trial that the second has taken over.
    code, said = ended(first)
    assert code == 2 and "has taken over" in said and "leave the sweep to that process" in said
    code, said = ended(second)
    assert code == 0, said
    seen = shaken.read()
    check_ledger(shaken, seen, {})
    check_mlflow(shaken, seen, equal=True)
    assert seen.result() == unbroken


def test_without_its_workers_a_sweep_goes_on_and_without_ray_it_says_so(
    tmp_path: Path, mlflow: Path, unbroken: list[tuple[Any, ...]]
) -> None:
    slower = toy_spec(trials=6, steps=5, seconds=0.2)  # with the same result
    shaken = Shaken(tmp_path / "shaken", slower, "ray", mlflow, environment=dict(RAY_SOON))
    command = shaken.start()
    chance = random.Random(0)
    wait_for_step(shaken, 3)
    assert WORKER.strike(command, chance)
    wait_for_step(shaken, 6)
    (raylet,) = members(command, "/raylet")
    left = raylet.children()  # without it, trials that run go on for a second or to their end
    for process in (raylet, *left):
        process.kill()
    code, said = ended(command)
    assert code == 1 and "Ray: got the end of its process on this machine (raylet)" in said
    check_ledger(shaken, shaken.read(), {})
    shaken.executor = "inline"  # what goes on needs no Ray
    code, said = ended(shaken.start())
    assert code == 0, said
    assert shaken.read().result() == unbroken
