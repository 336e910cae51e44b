"""A run killed with SIGKILL, again and again, ends with the weights of one that was not."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dapo.train import train
from safetensors.torch import load_file

SCRIPT = """
import sys
from dapo.config import Config
from dapo.train import train

def report(step):
    print(step.step, step.cost.tokens, step.cost.flops, step.metrics["cost/device_seconds"], flush=True)
    return True

train(Config.model_validate_json(sys.argv[1]), report)
"""
STEPS = 12


def lines_until_killed(config: str, kill_after: int | None, delay: float, path: str) -> list[list[str]]:
    """Run the script; kill it `delay` seconds after its `kill_after`-th line."""
    told: list[list[str]] = []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, *sys.path]), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, config], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            told.append(line.split())
            if len(told) == kill_after:
                time.sleep(delay)
                process.send_signal(signal.SIGKILL)
    return told


SWITCHES = {
    "plain": {},
    "all": {
        "rollout__pilot_n": 2,
        "data__selection": {"strategy": "thompson"},
        "algorithm__filter_groups": {"surplus": "carry", "surplus_max_staleness": 2, "max_num_gen_batches": 50},
    },
}


@pytest.mark.parametrize("name", [pytest.param("plain", marks=pytest.mark.slow), "all"])
def test_killed_anywhere_and_resumed_gives_the_same_weights(make_config, tmp_path: Path, name: str) -> None:
    seed = time.time_ns()
    print(f"kills are drawn from random.Random({seed})")
    rng = random.Random(seed)
    changes = {"trainer__total_training_steps": STEPS, "trainer__save_freq": 3, "data__gen_batch_size": 3}
    changes |= SWITCHES[name]
    whole, costs = make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")), {}

    def report(step) -> bool:
        costs[step.step] = (str(step.cost.tokens), str(step.cost.flops))
        return True

    train(whole, report)
    config = make_config(**changes, trainer__default_local_dir=str(tmp_path / "killed"))
    helpers = str(Path(__file__).parent / "helpers")
    runs = [
        lines_until_killed(config.model_dump_json(), rng.randint(1, 5), rng.uniform(0, 0.1), helpers) for _ in range(2)
    ]
    runs.append(lines_until_killed(config.model_dump_json(), None, 0, helpers))
    steps = [[int(line[0]) for line in told] for told in runs]
    assert all(told == list(range(told[0], told[-1] + 1)) for told in steps), "no step is left out"
    # A step may be saved and not yet told when the kill comes; it is told first then.
    assert all(after[0] <= before[-1] + 1 for before, after in zip(steps, steps[1:], strict=False)), "nothing is lost"
    assert steps[-1][-1] == STEPS
    for told in runs:
        for step, *cost, _ in told:
            assert tuple(cost) == costs[int(step)]
    seconds = [float(line[3]) for told in runs for line in told]
    assert max(seconds) == seconds[-1], "time spent on lost steps is not forgotten"
    one, other = (
        load_file(tmp_path / name / f"global_step_{STEPS}" / "model" / "model.safetensors")
        for name in ("whole", "killed")
    )
    assert all(one[name].equal(other[name]) for name in one)
