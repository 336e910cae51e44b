"""What a run costs: tokens and FLOPs, counted exactly, and seconds, measured by phase.

Cost is counted where the work is done, before anything is thrown away, so filtered and surplus groups, rounds
that end in nothing and recomputed log-probabilities are all in it. Steps that a kill made a run do twice are
known from the journal (`dapo.checkpoint`): their seconds are in `device_seconds`, which is what was really
spent, while `flops` and `tokens` count each step once, so that an interrupted run costs what an uninterrupted
one does.
"""

from __future__ import annotations

import contextlib
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from dapo.batch import Cost, Response, RolloutGroup
from dapo.sampling import SampledBatch
from dapo.throughput import IdleWatch, Work, rates

FlopsPerToken = Callable[[float], float]
"""FLOPs of one forward pass over one token with so much context; linear in the context."""
Segment = tuple[int, int]
"""(context, length): so many tokens that are computed after so many others of their sequence."""
DEVICES = 1
"""Devices that this version runs on."""


def generation_flops(prompt_length: int, responses: Sequence[Response], flops: FlopsPerToken) -> float:
    """FLOPs of generating one group: its prompt once, then each response token.

    A later turn begins with a pass over everything before it, what tools answered included: the engine keeps no
    cache between turns. FLOPs per token are linear in the context, so a run of tokens costs its length times the
    cost at its mean context.
    """
    total = forward_flops(0, prompt_length, flops)
    for response in responses:
        context = prompt_length
        for sampled, length in response.runs:
            if sampled:
                again = context if context > prompt_length else 0
                # A turn's last token is drawn and never fed back.
                total += forward_flops(0, again, flops) + forward_flops(context, length - 1, flops)
            context += length
    return total


def forward_flops(context: int, length: int, flops: FlopsPerToken) -> float:
    """FLOPs of one forward pass over `length` tokens after `context` others; each attends to itself too."""
    return length * flops(context + (length + 1) / 2)


def pass_flops(segments: Sequence[Segment], flops: FlopsPerToken) -> float:
    """FLOPs of one forward pass over so many segments."""
    return sum(forward_flops(context, length, flops) for context, length in segments)


def tokens_passed(segments: Sequence[Segment]) -> int:
    """Tokens that one forward pass over so many segments computes."""
    return sum(length for _, length in segments)


def update_flops(segments: Sequence[Segment], passes: int, flops: FlopsPerToken, *, recomputed: bool = False) -> float:
    """FLOPs of an update: a backward pass costs two forward ones.

    Args:
        segments: what one pass computes.
        passes: epochs over them.
        flops: of one token.
        recomputed: with gradient checkpointing, each pass runs its forward part twice.
    """
    return pass_flops(segments, flops) * (3 + recomputed) * passes


@dataclass(slots=True)
class Meter:
    """Cumulative cost, and the current step's seconds and work by phase."""

    cost: Cost = field(default_factory=Cost)
    peak: float | None = None
    """FLOP/s of the device; None: no utilisation is told."""
    idle: IdleWatch | None = None
    """None: nobody watches how much the device idles."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the current step; a phase's time holds that of its parts."""
    work: dict[str, Work] = field(default_factory=dict)
    """Of the current step."""

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the block's wall time to `timing_s/<phase>` and to the cost; `testing` counts as evaluation."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.note_part(phase, elapsed)
            if phase == "testing":
                seconds = self.cost.evaluation_device_seconds + elapsed * DEVICES
                self.cost = replace(self.cost, evaluation_device_seconds=seconds)
            else:
                self.cost = replace(self.cost, device_seconds=self.cost.device_seconds + elapsed * DEVICES)

    def spend(self, phase: str, flops: float, tokens: int) -> None:
        """Add work of training: tokens that `gen` sampled, or that another phase passed through the model."""
        sampled = tokens if phase == "gen" else 0
        self.cost = replace(self.cost, flops=self.cost.flops + flops, tokens=self.cost.tokens + sampled)
        self.work.setdefault(phase, Work()).add(tokens, flops)

    def spend_evaluation(self, flops: float, tokens: int) -> None:
        """Add work of evaluation: tokens that it sampled."""
        self.work.setdefault("testing", Work()).add(tokens, flops)
        self.cost = replace(
            self.cost,
            evaluation_flops=self.cost.evaluation_flops + flops,
            evaluation_tokens=self.cost.evaluation_tokens + tokens,
        )

    def note_part(self, part: str, elapsed: float) -> None:
        """Add seconds of a phase, or of a part of one whose time, and cost, they are in already."""
        self.seconds[part] = self.seconds.get(part, 0.0) + elapsed

    def take_step(self) -> dict[str, float]:
        """Return what happened since the last call by metric name: seconds, tokens per second, utilisation."""
        seconds, self.seconds = self.seconds, {}
        work, self.work = self.work, {}
        alone = dict(seconds)
        if "old_log_prob" in alone:
            alone["update_actor"] -= alone["old_log_prob"]
        found = {f"timing_s/{phase}": spent for phase, spent in seconds.items()} | rates(work, alone, self.peak)
        idle = None if self.idle is None else self.idle.take()
        return found if idle is None else found | {"perf/idle_share": idle}


@dataclass(slots=True)
class TurnStats:
    """Sums over the responses in which tools were offered."""

    offered: int = 0
    """Responses."""
    using: int = 0
    """Responses with a call that was answered."""
    turns: int = 0
    calls: int = 0
    failures: int = 0
    """Calls that were answered with an error."""
    tokens: int = 0
    tool_tokens: int = 0
    """Tokens that no policy sampled."""

    def add(self, response: Response) -> None:
        """Count a response."""
        if response.turns is None:
            return
        self.offered += 1
        self.using += response.turns.calls > 0
        self.turns += response.turns.count
        self.calls += response.turns.calls
        self.failures += response.turns.failures
        self.tokens += len(response.token_ids)
        self.tool_tokens += len(response.token_ids) - response.sampled_tokens

    def metrics(self, responses: int) -> dict[str, float]:
        """Means and shares by metric name, of so many responses in all; none where nothing was offered."""
        if self.offered == 0:
            return {}
        found = {
            "multi_turn/offered": self.offered / responses,
            "multi_turn/turns_mean": self.turns / self.offered,
            "multi_turn/calls_mean": self.calls / self.offered,
            "multi_turn/call_share": self.using / self.offered,
            "multi_turn/tool_token_share": self.tool_tokens / self.tokens,
        }
        return found | ({"multi_turn/failure_share": self.failures / self.calls} if self.calls else {})


@dataclass(slots=True)
class RolloutStats:
    """Sums over every response that one update generated, filtered and surplus ones included."""

    responses: int = 0
    tokens: int = 0
    """Sampled ones."""
    length: int = 0
    """Tokens of all responses, what tools answered included."""
    longest: int = 0
    truncated: int = 0
    penalised: int = 0
    """Responses whose reward the overlong penalty lowered."""
    failed: int = 0
    """Responses whose grading failed."""
    acc: float = 0.0
    score: float = 0.0
    seq_reward: float = 0.0
    kl_penalty: float = 0.0
    turns: TurnStats = field(default_factory=TurnStats)

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Count scored groups."""
        for group in groups:
            for response, score in zip(group.responses, group.scores, strict=True):
                length = len(response.token_ids)
                self.responses += 1
                self.tokens += response.sampled_tokens
                self.turns.add(response)
                self.length += length
                self.longest = max(self.longest, length)
                self.truncated += not response.finished
                self.penalised += score.seq_reward < score.score
                self.failed += score.failed
                self.acc += score.acc
                self.score += score.score
                self.seq_reward += score.seq_reward
                self.kl_penalty += score.kl_penalty

    def metrics(self) -> dict[str, float]:
        """Means and shares over responses, by metric name; none if nothing was generated."""
        count = self.responses
        if count == 0:
            return {"reward/grader_failures": 0.0}
        return {
            "reward/acc_mean": self.acc / count,
            "reward/score_mean": self.score / count,
            "reward/seq_reward_mean": self.seq_reward / count,
            "reward/overlong_penalised": self.penalised / count,
            "reward/grader_failures": float(self.failed),
            "response_length/mean": self.length / count,
            "response_length/max": float(self.longest),
            "response_length/clip_ratio": self.truncated / count,
            **({"reward/kl_penalty_mean": self.kl_penalty / count} if self.kl_penalty else {}),
            **self.turns.metrics(count),
        }


@dataclass(slots=True)
class TokenAccount:
    """Where every token went that was sampled for training, since the first step; a tool's tokens are none of them.

    With the tokens of groups that are held for the next update the parts add up to `Cost.tokens`, after each
    update and after a resume. Evaluation has its own count, `Cost.evaluation_tokens`.
    """

    trained: int = 0
    """In the loss."""
    masked: int = 0
    """In a batch, but out of the loss: of truncated responses, under `reward.overlong_filtering`."""
    filtered: int = 0
    """Of groups that the filter dropped."""
    surplus: int = 0
    """Of good groups that were thrown away at once."""
    stale: int = 0
    """Of good groups that were carried, and thrown away for their age."""
    pilot: int = 0
    """Of groups that ended with their pilot."""

    def add(self, sampled: SampledBatch, trained: int) -> None:
        """Book one gathering, `trained` tokens of which were in the loss."""
        self.trained += trained
        self.masked += sampled.tokens_kept - trained
        self.filtered += sampled.tokens_filtered
        self.surplus += sampled.tokens_surplus
        self.stale += sampled.tokens_stale
        self.pilot += sampled.tokens_pilot

    def metrics(self, held: int, evaluation: int) -> dict[str, float]:
        """Cumulative counts by metric name; `held` tokens wait for the next update."""
        parts = {**asdict(self), "held": held, "evaluation": evaluation}
        return {f"tokens_total/{name}": float(count) for name, count in parts.items()}


def cost_metrics(cost: Cost) -> dict[str, float]:
    """The objectives' costs by metric name."""
    return {
        "cost/flops": cost.flops,
        "cost/tokens": float(cost.tokens),
        "cost/device_seconds": cost.device_seconds,
    }


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_gb` count from now: a process may train one run after another."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # no Linux: the peak is the process's own since it started
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def peak_memory_gb(device: torch.device) -> float:
    """Highest memory use since `reset_peak_memory` in GiB: the accelerator's, or else the process's."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device)) / 2**30
    with contextlib.suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
        if found is not None:
            return int(found[1]) / 2**20
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
