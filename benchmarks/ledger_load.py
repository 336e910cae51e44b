"""The ledger under load: many workers that report at once for minutes, and one sweep of ten thousand trials.

Each worker is a process with a connection of its own, as patient as the platform. That is more than the platform does:
under Ray one driver writes for all trials. A report holds 40 metrics, and each fifth one 64 sampled answers. Meanwhile
somebody looks at all trials once a second. Whatever a worker was told is recorded is looked for afterwards.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from run_ledger import AttemptRecord, CostRecord, EvaluationRecord, Ledger, LedgerError, LedgerLocked
from sweep_platform.home import PATIENCE_S

from benchmarks import _ledger_fill

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))  # the simulated trainer

WORKERS, SECONDS, TRIALS = 64, 600.0, 10_000
EVERY_S = 2.0
"""Seconds from a worker's report to its next, on average: a step of the embedded task takes one on a core."""
METRICS = {f"group/metric_{index}": index / 7 for index in range(40)}
_PROMPT, _RESPONSE = "What is 6 x 7? " * 10, "42. " * 40
SAMPLES = tuple(
    EvaluationRecord(1, "toy", f"problem {index // 8}", index % 8, _PROMPT, _RESPONSE, "42", "42", True, 9)
    for index in range(64)
)


@dataclass
class Told:
    """What a worker has been told."""

    steps: int = 0
    """Reports that were recorded: 1, 2, …"""
    seconds: list[float] = field(default_factory=list)
    """Each report's."""
    locked: int = 0
    failed: Counter[str] = field(default_factory=Counter)


def _work(url: str, attempt: AttemptRecord, seed: int, until: float, result: Connection) -> None:
    """Report until the time is over."""
    chance, told = random.Random(seed), Told()
    with Ledger.open(url, patience_s=PATIENCE_S) as ledger:
        time.sleep(chance.uniform(0, EVERY_S))
        while time.monotonic() < until:
            step, began = told.steps + 1, time.perf_counter()
            try:
                ledger.record_step(
                    attempt,
                    step=step,
                    total_steps=10**6,
                    metrics={**METRICS, "step": step},
                    cost=CostRecord(tokens=step),
                    samples=SAMPLES if step % 5 == 0 else (),
                )
                told.steps = step
            except LedgerLocked:
                told.locked += 1
            except LedgerError as error:
                told.failed[str(error)] += 1
            told.seconds.append(time.perf_counter() - began)
            time.sleep(chance.uniform(0.5, 1.5) * EVERY_S)
    result.send(told)


def load(url: str, workers: int, seconds: float) -> dict[str, Any]:
    """Let the workers report, and compare what they were told with what is there."""
    context = multiprocessing.get_context("fork")
    with Ledger.open(url) as ledger:
        sweep = ledger.create_sweep("load", {}, "load", 0)
        lease = ledger.acquire_sweep(sweep.id, "driver", ttl_s=3600.0)
        attempts = [_started(ledger, lease, number) for number in range(workers)]
    pipes, until = [], time.monotonic() + seconds
    for number, attempt in enumerate(attempts):
        receiver, sender = context.Pipe(duplex=False)
        context.Process(target=_work, args=(url, attempt, number, until, sender), daemon=True).start()
        sender.close()
        pipes.append(receiver)
    with Ledger.open(url) as ledger:
        reads = []
        while time.monotonic() < until:
            began = time.perf_counter()
            ledger.trials(sweep.id)
            reads.append(time.perf_counter() - began)
            time.sleep(1.0)
        told: list[Told] = [pipe.recv() for pipe in pipes]
        lost = repeated = 0
        for attempt, one in zip(attempts, told, strict=True):
            there = [seen.step for seen in ledger.observations(attempt.trial_id)]
            lost += len(set(range(1, one.steps + 1)) - set(there))
            repeated += len(there) - len(set(there))
            last = one.steps - one.steps % 5
            lost += last > 0 and len(ledger.evaluations(attempt.trial_id, last)) != len(SAMPLES)
    times = sorted(second for one in told for second in one.seconds)
    return {
        "reports": len(times),
        "a_second": len(times) / seconds,
        "lost": lost,
        "repeated": repeated,
        "lock_errors": sum(one.locked for one in told),
        "other_errors": dict(sum((one.failed for one in told), Counter())),
        "p50_s": statistics.median(times),
        "p99_s": times[int(0.99 * (len(times) - 1))],
        "longest_s": times[-1],
        "reading_all_p50_s": statistics.median(reads),
    }


def _started(ledger: Ledger, lease: Any, number: int) -> AttemptRecord:
    trial = ledger.add_trial(
        lease, number=number, params={"n": number}, params_hash=str(number), config={}, origin="", sampler_state={}
    )
    return ledger.start_attempt(lease, trial.id, host="node", pid=number, ttl_s=3600.0)


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, str]]:
    """The address of each kind of ledger; PostgreSQL by a server of our own, with its usual settings."""
    os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))
    import pgserver  # looks for that folder when it is imported

    server = pgserver.get_server(folder / "postgresql", cleanup_mode="delete")
    try:
        yield {
            "SQLite": f"sqlite:///{folder / 'ledger.db'}",
            "PostgreSQL": server.get_uri().replace("postgresql://", "postgresql+psycopg://"),
        }
    finally:
        server.cleanup()


def run(workers: int = WORKERS, seconds: float = SECONDS, trials: int = TRIALS) -> dict[str, Any]:
    """Measure both databases."""
    loads: dict[str, Any] = {}
    large: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ledger-load-") as name, databases(Path(name)) as urls:
        for kind, url in urls.items():
            _ledger_fill.fill(url, trials)
            commands = _ledger_fill.time_commands(Path(name), url, _ledger_fill.environment())
            large[kind] = {
                "commands_s": commands,
                "samplers_s": _ledger_fill.time_search(url, trials),
                "step_with_800_samples_s": _ledger_fill.time_step(url),
                **_ledger_fill.time_ask(Path(name), url, trials),
            }
        for kind, url in urls.items():
            loads[kind] = load(url, workers, seconds)
    slowest = {kind: max(found["commands_s"].values()) for kind, found in large.items()}
    ask = {kind: found["driver_s"] + max(found["samplers_s"].values()) for kind, found in large.items()}
    return {
        "question": f"Ledger under load: {workers} workers for {seconds / 60:g} min; one sweep of {trials:,} trials",
        "goal": "nothing lost, no lock error, p99 of a report stated; ask < 0.5 s, `status` and `pareto` < 2 s",
        "measured": "; ".join(
            f"{kind}: {found['reports']:,} reports, {found['lost']} lost, {found['lock_errors']} lock errors, "
            f"p50 {1000 * found['p50_s']:.0f} ms, p99 {1000 * found['p99_s']:.0f} ms; ask {ask[kind]:.2f} s, "
            f"slowest command {slowest[kind]:.1f} s"
            for kind, found in loads.items()
        ),
        "met": all(
            not (found["lost"] or found["repeated"] or found["lock_errors"] or found["other_errors"])
            for found in loads.values()
        )
        and all(second < 0.5 for second in ask.values())
        and all(second < 2.0 for second in slowest.values()),
        "peers": [],
        "runs": {"load": loads, "large_sweep": large},
    }
