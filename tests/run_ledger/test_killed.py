"""A writer that is killed in the middle loses nothing that it was told is recorded."""

import multiprocessing
import random
import sqlite3
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

from run_ledger import CostRecord, Ledger
from small_ledger import sample, sweep, trial

SAMPLES = [sample(index) for index in range(50)]


def write(url: str, sweep_id: int, trial_id: int, told: Connection) -> None:
    """Report steps for ever, and tell which are recorded."""
    with Ledger.open(url) as ledger:
        lease = ledger.acquire_sweep(sweep_id, "writer", ttl_s=3600)
        ledger.reconcile(lease)
        attempt = ledger.start_attempt(lease, trial_id, host="node", pid=1)
        step = ledger.trial(trial_id).step
        while True:
            step += 1
            ledger.record_step(
                attempt,
                step=step,
                total_steps=10**6,
                metrics={"m": step},
                cost=CostRecord(tokens=step),
                samples=SAMPLES,
            )
            told.send(step)


def test_ten_kills_lose_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with Ledger.open(url) as ledger:
        lease = ledger.acquire_sweep(sweep(ledger).id, "me")
        waiting = trial(ledger, lease)
        ledger.release(lease)
    chance = random.Random(0)
    told = 0
    fork = multiprocessing.get_context("fork")
    for kills in range(1, 11):
        receiver, sender = fork.Pipe(duplex=False)
        process = fork.Process(target=write, args=(url, waiting.sweep_id, waiting.id, sender))
        process.start()
        sender.close()
        told = receiver.recv()
        time.sleep(chance.uniform(0, 0.05))
        process.kill()
        process.join()
        while receiver.poll():
            try:
                told = receiver.recv()
            except EOFError:
                break
        receiver.close()
        process.close()
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        with Ledger.open(url) as ledger:
            now = ledger.trial(waiting.id)
            assert now.step in (told, told + 1)  # the last may have been recorded but not told
            assert now.attempts == kills
            assert now.cost.tokens == now.step and now.metrics == {"m": now.step}
            assert [o.step for o in ledger.observations(waiting.id)] == list(range(1, now.step + 1))
            assert len(ledger.evaluations(waiting.id, now.step)) == len(SAMPLES)
    assert told >= 10
