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
from dapo.throughput import BusyClock, Work, idle_shares, rates

FlopsPerToken = Callable[[float], float]
"""FLOPs of one forward pass over one token with so much context; linear in the context."""
Segment = tuple[int, int]
"""(context, length): so many tokens that are computed after so many others of their sequence."""


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
    devices: int = 1
    """That work at the same time."""
    peak: float | None = None
    """FLOP/s of all devices; None: no utilisation is told."""
    clock: BusyClock | None = None
    """None: nobody watches how much this process's device idles."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the current step; a phase's time holds that of its parts."""
    work: dict[str, Work] = field(default_factory=dict)
    """Of the current step, on all devices."""
    _phases: dict[str, float] = field(default_factory=dict, init=False)
    """Wall seconds of the current step's phases, without parts of them."""
    _busy: dict[str, float] = field(default_factory=dict, init=False)
    """Of these, in which the device computed; a phase in which that couldn't be told is missing."""
    _since: float = field(default_factory=time.perf_counter, init=False)
    _busy_since: float | None = field(default=None, init=False)

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        """Add the block's wall time to `timing_s/<phase>` and to the cost; `testing` counts as evaluation."""
        start, busy = time.perf_counter(), self._busy_s()
        try:
            yield
        finally:
            elapsed, worked = time.perf_counter() - start, self._busy_s()
            self.note_part(phase, elapsed)
            self._phases[phase] = self._phases.get(phase, 0.0) + elapsed
            if busy is not None and worked is not None:
                self._busy[phase] = self._busy.get(phase, 0.0) + worked - busy
            if phase == "testing":
                seconds = self.cost.evaluation_device_seconds + elapsed * self.devices
                self.cost = replace(self.cost, evaluation_device_seconds=seconds)
            else:
                self.cost = replace(self.cost, device_seconds=self.cost.device_seconds + elapsed * self.devices)

    def spend(self, phase: str, flops: float, tokens: int, *, repeated: float = 0.0) -> None:
        """Add work of training.

        Args:
            phase: that did it.
            flops: in all.
            tokens: that `gen` sampled, or that another phase passed through the model.
            repeated: FLOPs of these that were computed a second time to save memory: a cost, and no utilisation.
        """
        sampled = tokens if phase == "gen" else 0
        self.cost = replace(self.cost, flops=self.cost.flops + flops, tokens=self.cost.tokens + sampled)
        self.work.setdefault(phase, Work()).add(tokens, flops - repeated)

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
        """Return what happened since the last call by metric name: seconds, speeds, utilisation.

        `timing_s/other` is what no phase had; a checkpoint that was saved after the last call is in it.
        """
        seconds, self.seconds = self.seconds, {}
        work, self.work = self.work, {}
        alone = dict(seconds)
        if "old_log_prob" in alone:
            alone["update_actor"] -= alone["old_log_prob"]
        found = {f"timing_s/{phase}": spent for phase, spent in seconds.items()}
        return found | rates(work, alone, self.peak, self.devices) | self._take_idle()

    def start(self, clock: BusyClock) -> None:
        """Watch a device from now on."""
        self.clock = clock
        self._take_idle()

    def _take_idle(self) -> dict[str, float]:
        """What no phase had of the time since the last call, and how much of it all this process's device idled."""
        now, busy = time.perf_counter(), self._busy_s()
        phases, self._phases = self._phases, {}
        worked, self._busy = self._busy, {}
        wall, self._since = now - self._since, now
        if busy is not None and self._busy_since is not None:
            worked["all"] = busy - self._busy_since
        self._busy_since = busy
        shares = idle_shares(
            {phase: spent for phase, spent in {**phases, "all": wall}.items() if phase in worked}, worked
        )
        return shares | ({"timing_s/other": max(wall - sum(phases.values()), 0.0)} if phases else {})

    def _busy_s(self) -> float | None:
        return None if self.clock is None else self.clock.busy_s()


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
    truncated_tokens: int = 0
    """Sampled ones of responses that were cut at the limit, wherever their groups ended."""
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
                self.truncated_tokens += 0 if response.finished else response.sampled_tokens
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
            "tokens/truncated": float(self.truncated_tokens),
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


def memory_metrics(device: torch.device) -> dict[str, float]:
    """The peak by metric name; of an accelerator by verl's names too."""
    found = {"perf/peak_memory_gb": peak_memory_gb(device)}
    if device.type == "cuda":
        found["perf/max_memory_allocated_gb"] = found["perf/peak_memory_gb"]
        found["perf/max_memory_reserved_gb"] = float(torch.cuda.max_memory_reserved(device)) / 2**30
    return found


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
