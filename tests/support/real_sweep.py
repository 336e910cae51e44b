"""A real sweep of the real trainer that takes seconds: an untrained decoder of 25k parameters, three trials."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from dapo.model import save_policy
from run_ledger import Ledger
from small_policy import small_policy
from sweep_platform.driver import open_sweep
from sweep_platform.executors import make_executor
from sweep_platform.home import Home
from sweep_platform.spec import check_spec, load_spec
from sweep_platform.tracking import MLflowObserver, Store

STEPS = 3
TRIALS = 3
EARLY = frozenset("abcdefghijklm")


def letters(data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, object]) -> float:
    """Right if there is a letter a-m: an untrained model does so now and then, and learns it fast."""
    return float(not EARLY.isdisjoint(solution_str))


def run_real_sweep(folder: Path) -> Store:
    """Run it under `folder` as `platform sweep` does, one trial after the other, with MLflow beside it."""
    spec_file = folder / "small.yaml"
    spec_file.write_text(yaml.safe_dump(_spec(_model(folder / "model"), _problems(folder, 1), _problems(folder, 2))))
    spec = load_spec(spec_file, ())
    check_spec(spec, source=spec_file)
    home = Home(folder / "home")
    store = Store(f"sqlite:///{home.root}/mlflow.db", home.artifacts)
    warned: list[str] = []
    with (
        Ledger.open(home.ledger_url) as ledger,
        MLflowObserver(ledger, store, warn=warned.append, flush_s=0.2) as mlflow,
        open_sweep(ledger, spec, home, observers=(mlflow,)) as driver,
    ):
        make_executor("inline").run(driver)
    assert warned == []
    return store


def _spec(model: Path, train: Path, val: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "model": {"path": str(model)},
        "data": {
            "train": str(train),
            "val": str(val),
            "train_batch_size": 4,
            "gen_batch_size": 6,
            "max_prompt_length": 64,
            "max_response_length": 8,
        },
        "config": {
            "rollout": {"n": 4, "val_kwargs": {"n": 2}},
            "algorithm": {"filter_groups": {"on_exhausted": "train_partial"}},
            "reward": {"grader": "custom", "custom_reward_function": "real_sweep:letters"},
            "trainer": {"total_training_steps": STEPS, "test_freq": 1, "save_freq": 0, "device": "cpu"},
        },
        "objectives": [
            {"metric": "val/accuracy", "direction": "maximize"},
            {"metric": "cost/flops", "direction": "minimize"},
        ],
        "search": {
            "actor.optim.lr": {"float": [1e-3, 1e-2], "log": True},
            "algorithm.filter_groups.max_num_gen_batches": {"int": [2, 8]},
        },
        "sampler": "random",
        "budget": {"trials": TRIALS},
        "hardware": {"cores": 1},
    }


def _model(folder: Path) -> Path:
    save_policy(small_policy(), folder)
    return folder


def _problems(folder: Path, added: int) -> Path:
    rows = [{"problem": f"{number}+{added}", "answer": number + added, "data_source": "aime"} for number in range(10)]
    file = folder / f"problems-{added}.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file
