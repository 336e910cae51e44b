"""Does a real model learn: SmolLM2-135M, a warm start on word problems and then DAPO, within an hour of one core.

Trained on the problems of ASDiv that one operation on two of their numbers solves, evaluated on all of MAWPS's
single-operation problems. Problems of ASDiv that are MAWPS's too, or nearly, are left out. The warm start's
solutions are made from problem and answer: the one operation that gives it. Data are found in the folder that
`PLATFORM_BENCHMARK_DATA` names, or in `../shared/data` beside the repository: `asdiv.jsonl` and
`mawps-singleop.jsonl` with `id`, `problem` and `answer`. A run that was killed goes on where its last checkpoint is.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
HOUR = 3600.0
MARGIN = 60.0
"""Seconds kept free at the end, besides the last evaluation."""
NEAR = 0.8
"""Share of common words from which on two problems count as one."""
PROMPT = "<|im_start|>user\n{problem}<|im_end|>\n<|im_start|>assistant\n"
"""The model's own form without its system message, which is half of a prompt."""
WARM = {"share": 0.2, "epochs": 1.0, "batch_size": 16, "lr": 1e-4}
"""Short, so that it teaches the form and leaves the rest to DAPO."""
SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
UNITS = {word: number for number, word in enumerate([*SMALL.split(), "eighteen", "nineteen"])}
TENS = {
    word: 10 * number for number, word in enumerate("twenty thirty forty fifty sixty seventy eighty ninety".split(), 2)
}
OPERATIONS: dict[str, Callable[[float, float], float | None]] = {
    "+": lambda x, y: x + y,
    "-": lambda x, y: x - y,
    "*": lambda x, y: x * y,
    "/": lambda x, y: x / y if y else None,
}


def data_folder() -> Path:
    """Where the problems are; ends the program with one line if they aren't."""
    folder = Path(os.environ.get("PLATFORM_BENCHMARK_DATA") or HERE.parent.parent / "shared" / "data")
    missing = [name for name in ("asdiv.jsonl", "mawps-singleop.jsonl") if not (folder / name).is_file()]
    if missing:
        need = "asdiv.jsonl and mawps-singleop.jsonl with id, problem and answer"
        sys.exit(
            f"PLATFORM_BENCHMARK_DATA: got {folder} without {', '.join(missing)}; need {need}; set it to their folder"
        )
    return folder


def words(text: str) -> list[str]:
    """Lower-case words and numbers; numbers in words become digits."""
    found: list[str] = []
    for word in re.findall(r"\d[\d,]*(?:\.\d+)?|[a-z]+", text.lower()):
        if word in UNITS and found and found[-1] in map(str, TENS.values()) and UNITS[word] in range(1, 10):
            found[-1] = str(int(found[-1]) + UNITS[word])
        else:
            number = UNITS.get(word, TENS.get(word))
            found.append(word.replace(",", "") if number is None else str(number))
    return found


def alike(one: frozenset[str], other: frozenset[str]) -> float:
    """Share of the words of two problems that both have."""
    return len(one & other) / len(one | other)


def operations(problem: str, answer: str) -> set[str]:
    """Every `x + y = answer` over two numbers of the problem, in their order for + and *."""
    numbers = [word for word in words(problem) if word[0].isdigit()]
    found = set()
    for place, left in enumerate(numbers):
        for other, right in enumerate(numbers):
            for sign, operation in OPERATIONS.items():
                if place == other or (sign in "+*" and place > other):
                    continue
                value = operation(float(left), float(right))
                if value is not None and abs(value - float(answer)) < 1e-9:
                    found.add(f"{left} {sign} {right} = {answer}")
    return found


def read(path: Path) -> list[dict[str, str]]:
    """Rows with a number as answer."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [row for row in rows if re.fullmatch(r"\d+(\.\d+)?", row["answer"])]


def prepare_data(source: Path, folder: Path) -> dict[str, int]:
    """Write train.jsonl, with a solution where there is exactly one, and val.jsonl; return counts."""
    rows, val = read(source / "asdiv.jsonl"), read(source / "mawps-singleop.jsonl")
    held = [frozenset(words(row["problem"])) for row in val]
    exact, near, train = 0, 0, []
    for row in rows:
        mine = frozenset(words(row["problem"]))
        likeness = max(alike(mine, other) for other in held)
        exact += likeness == 1.0
        near += NEAR <= likeness < 1.0
        found = operations(row["problem"], row["answer"])
        if likeness < NEAR and len(found) == 1:
            train.append(row | {"solution": f"{found.pop()}\nAnswer: {row['answer']}"})
    for name, content in (("train", train), ("val", val)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content), "utf-8")
    return {
        "asdiv": len(rows),
        "in both": exact,
        "nearly in both": near,
        "trained on": len(train),
        "validation": len(val),
    }


def settings(folder: Path, model: str, steps: int) -> dict[str, Any]:
    """The run's config; what isn't here is the trainer's default."""
    return {
        "model": {"path": model},
        "data": {
            "train": str(folder / "train.jsonl"),
            "val": str(folder / "val.jsonl"),
            "train_batch_size": 8,
            "max_prompt_length": 128,
            "max_response_length": 40,
            "prompt_template": PROMPT,
        },
        "rollout": {"n": 8, "max_num_seqs": 256, "val_kwargs": {"n": 1}},
        "algorithm": {"filter_groups": {"surplus": "carry", "on_exhausted": "train_partial"}},
        "actor": {
            "use_prefix_grouper": True,
            "ppo_max_token_len_per_gpu": 4096,
            "optim": {"lr": 2e-5, "lr_warmup_steps": 3},
        },
        "reward": {"grader": "number"},
        "trainer": {
            "total_training_steps": steps,
            "test_freq": 25,
            "val_before_train": False,
            "save_freq": 10,
            "max_ckpt_to_keep": 1,
            "default_local_dir": str(folder / "checkpoints"),
            "num_threads": 1,
        },
    }


class Log:
    """Events of the run, one JSON object a line, each with the seconds spent so far, killed attempts included."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        self.start = time.monotonic() - (self.events[-1]["seconds"] if self.events else 0.0)

    @property
    def seconds(self) -> float:
        """Seconds spent."""
        return time.monotonic() - self.start

    def add(self, event: str, **values: Any) -> None:
        """Note an event."""
        self.events.append({"event": event, "seconds": round(self.seconds, 1), **values})
        with self.path.open("a") as file:
            file.write(json.dumps(self.events[-1]) + "\n")
        sys.stderr.write(json.dumps(self.events[-1]) + "\n")

    def last(self, event: str) -> dict[str, Any] | None:
        """The last event of a kind."""
        found: list[dict[str, Any]] = [item for item in self.events if item["event"] == event]
        return found[-1] if found else None


def warm_up(folder: Path, log: Log) -> None:
    """The supervised part, if it isn't done yet."""
    from dapo.config_warmstart import WarmstartConfig
    from dapo.supervised import warmstart
    from dapo.trainer import Config

    if (folder / "warm").is_dir() and log.last("warm start") is not None:
        return
    shutil.rmtree(folder / "warm", ignore_errors=True)
    config = Config.model_validate(settings(folder, "smollm2-135m", 1))

    def progress(what: str, done: int, total: int) -> None:
        log.add("warm start step", what=what, step=done, of=total)

    found = warmstart(config, WarmstartConfig.model_validate(WARM), folder / "warm", progress)
    log.add("warm start", **{name: getattr(found, name) for name in ("steps", "examples", "tokens")},
            before=accuracy(found.before), after=accuracy(found.after))  # fmt: skip


def accuracy(metrics: Any) -> list[float]:
    """Validation accuracy and its standard error."""
    return [round(metrics[name], 4) for name in ("val/accuracy", "val/accuracy_se")]


def reinforce(folder: Path, log: Log) -> None:
    """DAPO until the hour is nearly over, and the last evaluation."""
    from dapo.trainer import Config, StepMetrics, train

    spent_on_evaluation = 150.0

    def report(step: StepMetrics) -> bool:
        nonlocal spent_on_evaluation
        found = step.metrics
        names = {"yield": "filter/yield", "training accuracy": "reward/acc_mean", "length": "response_length/mean"}
        values = {name: round(found[key], 4) for name, key in names.items() if key in found}
        if "val/accuracy" in found:
            values["accuracy"] = accuracy(found)
            spent_on_evaluation = found.get("timing_s/testing", spent_on_evaluation)
        phases = {name: round(found.get(f"timing_s/{name}", 0.0), 1) for name in ("gen", "update_actor", "testing")}
        log.add("step", step=step.step, tokens=step.cost.tokens, **values, **phases)
        return log.seconds + spent_on_evaluation + MARGIN + phases["gen"] + phases["update_actor"] < HOUR

    train(Config.model_validate(settings(folder, str(folder / "warm"), 10_000)), report)
    last = log.last("step")
    assert last is not None
    # A resumed run with a shorter plan evaluates its last step.
    train(Config.model_validate(settings(folder, str(folder / "warm"), last["step"])), report)


def run() -> dict[str, Any]:
    """Warm start, DAPO, and what they came to."""
    from dapo.trainer import Config, prepare

    source, folder = data_folder(), Path(tempfile.gettempdir()) / "smollm2-benchmark"
    folder.mkdir(exist_ok=True)
    prepare(Config.model_validate({"model": {"path": "smollm2-135m"}}))
    log = Log(folder / "log.jsonl")
    counts = prepare_data(source, folder)
    log.add("data", **counts)
    warm_up(folder, log)
    reinforce(folder, log)
    warm, last = log.last("warm start"), log.last("step")
    assert warm is not None and last is not None
    (HERE / "results" / "smollm2.log").write_text((folder / "log.jsonl").read_text())
    (before, before_se), (start, start_se), (end, end_se) = warm["before"], warm["after"], last["accuracy"]
    noise = 2 * (start_se**2 + end_se**2) ** 0.5
    shutil.rmtree(folder)
    return {
        "question": "SmolLM2-135M, one core, an hour: warm start on ASDiv, then DAPO; accuracy on MAWPS single-op",
        "goal": "DAPO adds more than two standard errors to the warm start",
        "measured": (
            f"{100 * before:.1f} ± {100 * before_se:.1f} % before (in 40 tokens), {100 * start:.1f} ± "
            f"{100 * start_se:.1f} % after the warm start ({warm['steps']} updates), {100 * end:.1f} ± "
            f"{100 * end_se:.1f} % after {last['step']} updates of DAPO, {last['seconds'] / 60:.0f} min in all"
        ),
        "met": end - start > noise,
        "peers": [],
        "runs": {
            "data": counts,
            "warm_start": WARM,
            "settings": settings(Path(), "warm", last["step"]),
            "log": log.events,
        },
    }
