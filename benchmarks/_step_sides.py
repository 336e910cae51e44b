"""One side of `benchmarks.step_vs_trl` in a process of its own: `python -m benchmarks._step_sides SIDE CASE ROWS`.

Prints a line of JSON: seconds of each step, tokens that each sampled, and the process's memory at its peak.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from dapo.accounting import peak_memory_gb, reset_peak_memory
from dapo.arithmetic import problems
from dapo.graders import grade, parse_integer
from dapo.model_folder import resolve_model
from dapo.tokenizer import Tokenizer

SKIPPED, TIMED = 2, 7
"""Steps: the first ones warm up. One more follows, which evaluates or saves."""
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
SEED = 0
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    """What both sides do."""

    model: str
    prompts: int
    n: int
    length: int
    """Tokens of a response, at most."""
    lr: float
    rows: tuple[int, ...]
    """Rows that trl takes through the model at once; the fastest counts."""
    budget: int
    """Tokens that we take through it at once."""

    @property
    def steps(self) -> int:
        """Steps that run."""
        return SKIPPED + TIMED + 1


CASES = {
    "tiny": Case("tiny", 32, 8, 48, 1e-4, (64, 256), 16384),
    "smollm2-135m": Case("smollm2-135m", 8, 8, 64, 1e-6, (16, 64), 4096),
}


@dataclass
class Clock:
    """Times of steps, and the process's memory in GiB."""

    ticks: list[float] = field(default_factory=list)
    before_gb: float = 0.0

    def tick(self) -> None:
        """A step begins, or ends."""
        if not self.ticks:
            reset_peak_memory(CPU)
            self.before_gb = peak_memory_gb(CPU)
        self.ticks.append(time.perf_counter())

    def told(self, tokens: list[int]) -> dict[str, Any]:
        """What is printed, of the steps that count."""
        seconds = [late - early for early, late in zip(self.ticks, self.ticks[1:], strict=False)]
        counted = slice(SKIPPED, SKIPPED + TIMED)
        memory = {"peak_gb": peak_memory_gb(CPU), "before_gb": self.before_gb}
        return {"seconds": seconds[counted], "tokens": tokens[counted], **memory}


def ours(case: Case, rows: int) -> dict[str, Any]:
    """Train with this project's trainer, without a filter: both sides then generate the same number of responses."""
    del rows
    from dapo.trainer import Config, StepMetrics, prepare, train

    config = Config.model_validate(
        {
            "model": {"path": case.model},
            "data": {
                "train_batch_size": case.prompts,
                "max_prompt_length": 256,
                "max_response_length": case.length,
                "val_size": 1,
            },
            "rollout": {"n": case.n, "temperature": 1.0},
            "algorithm": {"filter_groups": {"enable": False}},
            "actor": {
                "optim": {"lr": case.lr},
                "ppo_mini_batch_size": case.prompts,
                "ppo_max_token_len_per_gpu": case.budget,
                "clip_ratio_low": CLIP_LOW,
                "clip_ratio_high": CLIP_HIGH,
            },
            "trainer": {
                "total_training_steps": case.steps,
                "test_freq": -1,
                "val_before_train": False,
                "seed": SEED,
            },
        }
    )
    prepare(config)
    clock, tokens = Clock(), []

    def report(step: StepMetrics) -> bool:
        clock.tick()
        tokens.append(step.cost.tokens)
        return True

    clock.tick()
    train(config, report)
    return clock.told([late - early for early, late in zip([0, *tokens], tokens, strict=False)])


def trl_settings(case: Case, rows: int, out: str) -> Any:
    """What trl calls the same."""
    import trl

    return trl.GRPOConfig(
        output_dir=out,
        max_steps=case.steps,
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=case.prompts * case.n // rows,
        num_generations=case.n,
        max_completion_length=case.length,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=CLIP_LOW,
        epsilon_high=CLIP_HIGH,
        loss_type="dapo",
        learning_rate=case.lr,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        seed=SEED,
        model_init_kwargs={"dtype": torch.float32},
    )


def theirs(case: Case, rows: int) -> dict[str, Any]:
    """The same with trl's GRPOTrainer and its loss `dapo`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import datasets
    import transformers
    import trl

    transformers.utils.logging.disable_progress_bar()
    folder = resolve_model(case.model)
    tokenizer = Tokenizer.load(folder)
    asked = problems("train", case.prompts * case.steps, seed=SEED)
    clock, tokens = Clock(), []

    def reward(completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        tokens.append(sum(map(len, completion_ids)))
        return [
            float(grade(parse_integer, said, right).correct) for said, right in zip(completions, answer, strict=True)
        ]

    class Watch(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.tick()

    with tempfile.TemporaryDirectory() as out:
        rows_of = [{"prompt": tokenizer.prompt(row.problem), "answer": row.ground_truth} for row in asked]
        trainer = trl.GRPOTrainer(
            model=str(folder),
            reward_funcs=reward,
            args=trl_settings(case, rows, out),
            train_dataset=datasets.Dataset.from_list(rows_of),
            processing_class=transformers.AutoTokenizer.from_pretrained(folder, padding_side="left"),
            callbacks=[Watch()],
        )
        clock.tick()
        trainer.train()
    return clock.told(tokens)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    side, name, rows = sys.argv[1:]
    torch.set_num_threads(2)
    print(json.dumps({"ours": ours, "trl": theirs}[side](CASES[name], int(rows))))
