"""What `actor.use_torch_compile` costs at the start of a run, and what it saves in each update, on one core.

Scoring with gradient alternates between plain and compiled code on the same sequences, which are others in each update.
The compiler's cache is empty at first; then a second process finds it full, as a sweep's later trials do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

UPDATES = 50
"""Of the run that it has to pay in."""
CASES = {"tiny": (96, 12), "smollm2-135m": (6, 6)}
"""By shape: responses of an update, and updates that are timed."""


def run() -> dict[str, Any]:
    """Time each shape with an empty and with a full cache."""
    runs: dict[str, dict[str, Any]] = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as cache:
            for state in ("empty", "full"):
                runs[f"{name}, {state} cache"] = found = _timed(name, cache)
                sys.stderr.write(f"{name}, {state} cache: {found}\n")
    gains = {
        case: UPDATES * (found["plain_s"] - found["compiled_s"]) - found["start_s"] for case, found in runs.items()
    }
    told = [
        f"{case}: {1 - found['compiled_s'] / found['plain_s']:.0%} of an update's scoring for {found['start_s']:.1f} s"
        for case, found in runs.items()
    ]
    return {
        "question": f"torch.compile in the update: what it saves, for how long a start; gain in a run of {UPDATES}",
        "goal": "a gain in every case; else it stays off by default",
        "measured": "; ".join(told),
        "met": min(gains.values()) > 0,
        "peers": [],
        "runs": {case: {**found, "gain_s": gains[case]} for case, found in runs.items()},
    }


def _timed(name: str, cache: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache}
    command = [sys.executable, "-m", "benchmarks.compiling", name]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _measure(name: str) -> dict[str, float]:
    import torch
    from dapo.model import Decoder, response_logprobs
    from dapo.named_models import NAMED_SHAPES

    torch.set_num_threads(1)
    responses, updates = CASES[name]
    model = Decoder(NAMED_SHAPES[name])
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.02)
    draw = torch.Generator().manual_seed(0)

    def ids(least: int, most: int) -> list[int]:
        size = int(torch.randint(least, most, (1,), generator=draw))
        return torch.randint(2, model.config.vocab_size, (size,), generator=draw).tolist()

    def seconds(batch: list[tuple[list[int], list[int]]], compiled: bool) -> float:
        model.compiled = compiled
        model.zero_grad(set_to_none=True)
        start = time.perf_counter()
        logprobs, entropy = response_logprobs(model, batch, 1.0)
        torch.autograd.backward(logprobs.mean() - 0.01 * entropy.mean())
        return time.perf_counter() - start

    times: list[tuple[float, float]] = []
    for _ in range(updates + 1):
        batch = [(ids(10, 40), ids(4, 48)) for _ in range(responses)]
        times.append((seconds(batch, False), seconds(batch, True)))
    plain, compiled = (statistics.median(column) for column in zip(*times[1:], strict=True))
    return {"start_s": times[0][1] - compiled, "plain_s": plain, "compiled_s": compiled}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1])))
