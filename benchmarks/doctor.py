"""Does `platform doctor` find what is wrong, and only that: runs with one planted fault each, and healthy ones.

Every run trains the embedded model for some updates, under several seeds. A finding counts as right if it is the
planted fault's, or one that the fault brings about itself, which are listed with it; any other is a false alarm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.arithmetic import problems

from benchmarks.ablation import merged

SEEDS = (0, 1, 2)
HEALTHY_SEEDS = tuple(range(12))
ROOT = Path(__file__).parent.parent
BASE: dict[str, Any] = {
    "data": {"train_batch_size": 16, "val_size": 200},
    "rollout": {"val_kwargs": {"n": 4}},
    "algorithm": {"filter_groups": {"on_exhausted": "train_partial"}},
    "actor": {"optim": {"lr": 3e-4}},
    "trainer": {"total_training_steps": 10, "test_freq": -1, "num_threads": 1},
}
_TRAIN = """
import json, sys
from dapo.trainer import Config, examine, prepare, train
config, history = Config.model_validate(json.loads(sys.argv[1])), []
prepare(config)
train(config, lambda step: history.append(dict(step.metrics)) or True)
print(json.dumps([found.name + ": " + found.evidence for found in examine(config, history)]))
"""


@dataclass(frozen=True)
class Planted:
    """A fault, and how it is planted."""

    finding: str
    settings: Mapping[str, Any]
    brings: tuple[str, ...] = ()
    """Findings that are true of such runs too."""


def hidden(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """A lenient reward: any answer that ends in the right digit is right."""
    digits = [character for character in solution_str if character.isdigit()]
    return float(bool(digits) and digits[-1] == ground_truth[-1])


def broken(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """A reward that fails on long responses."""
    if len(solution_str) > 30:
        raise ValueError("too long for me")
    return float(solution_str.strip().endswith(ground_truth))


def narrow(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """A reward of one answer, whatever the problem, and of few words."""
    return float(solution_str.strip().endswith("7")) - len(solution_str) / 50


def slow(data_source: str, solution_str: str, ground_truth: str, extra_info: object) -> float:
    """A reward that waits, as one that asks a service does."""
    time.sleep(0.02)
    return float(solution_str.strip().endswith(ground_truth))


def data_files(folder: Path) -> dict[str, str]:
    """Training sets: unsolvable, easy, and with each problem ten times."""
    usual = problems("train", 400, seed=5)
    easy = [problem for problem in usual if problem.extra["level"] == 1]
    rows = {
        "unsolvable": [(problem.problem, str((int(problem.ground_truth) + 417) % 1000)) for problem in usual],
        "repeated": [(problem.problem, problem.ground_truth) for problem in usual for _ in range(10)],
        "easy": [(problem.problem, problem.ground_truth) for problem in easy],
    }
    for name, pairs in rows.items():
        lines = [json.dumps({"problem": problem, "answer": answer}) for problem, answer in pairs]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    return {name: str(folder / f"{name}.jsonl") for name in rows}


def custom(name: str) -> dict[str, Any]:
    """The reward's settings for a function of this module."""
    return {"grader": "custom", "custom_reward_function": f"benchmarks.doctor:{name}"}


NOISE, NONE = "evaluation is noise", "updates are skipped"
SCARCE = ("data too hard", "data too easy", "group too small")


def planted(files: Mapping[str, str]) -> list[Planted]:
    """Every fault."""
    narrow = {"statistic": "mean", "threshold": 0.45, "upper": 0.55}
    blind = {
        "data": {"train": files["unsolvable"]},
        "algorithm": {"filter_groups": {"metric": "seq_reward"}},
        "reward": {"overlong_buffer": {"enable": True, "len": 47}},
    }
    broken_too = (NOISE, NONE, "accuracy falls", "responses are cut")
    collapsing = {
        "reward": custom("narrow"),
        "actor": {"optim": {"lr": 1e-3}},
        "algorithm": {"filter_groups": {"enable": False}},
        "trainer": {"total_training_steps": 20},
    }
    return [
        Planted("data too hard", {"data": {"train": files["unsolvable"]}}, (NOISE, NONE)),
        Planted("data too easy", {"data": {"train": files["easy"]}, "rollout": {"temperature": 0.5}}, (NOISE, NONE)),
        Planted("group too small", {"rollout": {"n": 2, "temperature": 0.7}}, (NOISE, NONE)),
        Planted("filter drops groups with a signal", {"algorithm": {"filter_groups": narrow}}, (NOISE, NONE)),
        Planted("filter keeps groups without a signal", blind, (NOISE, NONE)),
        Planted("responses are cut", {"data": {"max_response_length": 20}}, (NOISE, NONE, *SCARCE)),
        Planted("entropy collapses", collapsing, (NOISE, "accuracy falls")),
        Planted("accuracy falls", {"actor": {"optim": {"lr": 3e-3}}, "trainer": {"total_training_steps": 20}}),
        Planted("reward is hacked", {"reward": {**custom("hidden"), "also": ["integer"]}}, (NOISE,)),
        Planted("grading fails", {"reward": custom("broken")}, (NOISE, *SCARCE)),
        Planted("updates too large", {"actor": {"optim": {"lr": 1e-2}, "ppo_mini_batch_size": 2}}, broken_too),
        Planted("data repeats itself", {"data": {"train": files["repeated"]}}),
        Planted("learning rate's horizon", {"actor": {"optim": {"lr_warmup_steps": 40}}}, (NOISE,)),
        Planted(
            NOISE, {"data": {"val_size": 12}, "rollout": {"val_kwargs": {"n": 1}}, "actor": {"optim": {"lr": 1e-6}}}
        ),
        Planted("devices idle", {"reward": custom("slow")}),
    ]


@dataclass
class Tally:
    """Of one fault, or of the healthy runs."""

    runs: int = 0
    found: int = 0
    false: list[str] = field(default_factory=list)


def _train(settings: Mapping[str, Any], seed: int) -> list[str]:
    config = merged(merged(BASE, settings), {"trainer": {"seed": seed}})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", _TRAIN, json.dumps(config)], env=environment, stdout=subprocess.PIPE, check=True
    )
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def run() -> dict[str, Any]:
    """Train all runs, one on each core at a time, and count."""
    with tempfile.TemporaryDirectory() as folder:
        faults = [*planted(data_files(Path(folder))), Planted("", {})]
        tasks = [(fault, seed) for fault in faults for seed in (SEEDS if fault.finding else HEALTHY_SEEDS)]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            results = list(threads.map(lambda task: _train(task[0].settings, task[1]), tasks))
    tallies: dict[str, Tally] = {}
    rows = []
    for (fault, seed), said in zip(tasks, results, strict=True):
        tally = tallies.setdefault(fault.finding or "healthy", Tally())
        names = [line.split(":")[0] for line in said]
        tally.runs += 1
        tally.found += fault.finding in names
        tally.false += [name for name in names if name != fault.finding and name not in fault.brings]
        rows.append({"planted": fault.finding, "seed": seed, "said": said})
    wrong = {name: tally for name, tally in tallies.items() if name != "healthy"}
    hits, planted_runs = sum(tally.found for tally in wrong.values()), sum(tally.runs for tally in wrong.values())
    false = sum(len(tally.false) for tally in tallies.values())
    healthy = tallies["healthy"]
    precision = hits / max(hits + false, 1)
    clean = sum(not row["said"] for row in rows if not row["planted"])
    return {
        "question": f"`platform doctor` on {planted_runs} runs with one planted fault each ({len(wrong)} kinds) and "
        f"{healthy.runs} healthy ones",
        "goal": "recall and precision of 90 % or more, nothing found in a healthy run",
        "measured": f"recall {hits / planted_runs:.0%}, precision {precision:.0%} ({false} false alarms); "
        f"{clean} of {healthy.runs} healthy runs without a finding"
        + "".join(
            f"; {name}: {tally.found} of {tally.runs}" for name, tally in wrong.items() if tally.found < tally.runs
        ),
        "met": hits >= 0.9 * planted_runs and hits >= 0.9 * (hits + false) and clean == healthy.runs,
        "peers": [],
        "runs": rows,
    }
