"""The types that flow between the trainer's parts, in the order in which the algorithm makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple


class Fault(NamedTuple):
    """One thing wrong with a config or a data set, found before any token is generated."""

    key: str
    """Dotted path in `Config`, or place in a file."""
    got: str
    """What stands there."""
    need: str
    """What would do."""
    do: str
    """The next step, in the imperative."""

    def __str__(self) -> str:
        """The fault in one line."""
        return f"{self.key}: got {self.got}; need {self.need}; {self.do}"


class Message(NamedTuple):
    """One turn of a dialogue."""

    role: str
    """`system`, `user` or `assistant`."""
    content: str


Identity = tuple[str, tuple[Message, ...]]
"""What rows that ask the same have in common."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One prompt with its gold answer."""

    problem_id: str
    """Unique within its data source; repeated rows of one problem share it."""
    data_source: str
    """Name of the data set, as in `val/<data_source>/accuracy`."""
    problem: str
    """The problem's text, without template."""
    ground_truth: str
    """Gold answer, as printed in the data."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Other columns, handed to the reward function as `extra_info`."""
    messages: tuple[Message, ...] = ()
    """The dialogue, where the prompt is one; the last message is the user's, and `problem` is all their text."""

    @property
    def identity(self) -> Identity:
        """The text, and who said what of it."""
        return self.problem, self.messages


@dataclass(slots=True)
class Turns:
    """What a response has beside its tokens where tools were offered, used or not."""

    mask: list[bool]
    """[R] True for tokens that the policy sampled; False for a tool's answer and the framing around it, which the
    policy reads and is never trained to say (verl's `response_mask`)."""
    count: int
    """Assistant turns."""
    last_text: str
    """What the policy said in its last turn, calls left out."""
    calls: int = 0
    """Calls that were answered."""
    failures: int = 0
    """Calls among them whose answer was an error."""


@dataclass(slots=True)
class Response:
    """One sampled response: in one turn, or in several with what tools answered in between."""

    token_ids: list[int]
    """[R] tokens, the end token of each turn included when there is one."""
    rollout_logprobs: list[float]
    """[R] log-probability of each token under the distribution it was drawn from; 0 where it wasn't drawn."""
    finished: bool
    """False: cut at `max_response_length`."""
    text: str
    """Decoded, without special tokens."""
    turns: Turns | None = None
    """None: no tools were offered, and every token is the policy's."""

    @property
    def mask(self) -> list[bool]:
        """[R] True for the tokens that the policy sampled."""
        return [True] * len(self.token_ids) if self.turns is None else self.turns.mask

    @property
    def runs(self) -> list[tuple[bool, int]]:
        """The mask as (value, length) of each run of equal values."""
        if self.turns is None:
            return [(True, len(self.token_ids))]
        return [(sampled, sum(1 for _ in run)) for sampled, run in groupby(self.turns.mask)]

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled."""
        return len(self.token_ids) if self.turns is None else sum(self.turns.mask)

    @property
    def statement(self) -> str:
        """What is graded: the policy's own words in its last turn, never a tool's."""
        return self.text if self.turns is None else self.turns.last_text


@dataclass(slots=True)
class Score:
    """What the reward stage says of one response, stage by stage."""

    acc: float
    """1.0 right, 0.0 wrong; before shaping."""
    score: float
    """The grader's reward; before shaping."""
    seq_reward: float
    """After the overlong penalty, before the in-reward KL."""
    answer: str
    """The answer that was read, or an empty string."""
    extra: Mapping[str, float] = field(default_factory=dict)
    """Other keys that the reward function returned."""
    failed: bool = False
    """The reward function raised or returned no usable score; the response counts as wrong."""
    kl_penalty: float = 0.0
    """What the in-reward KL takes off; 0 without one."""

    @property
    def seq_final_reward(self) -> float:
        """After the overlong penalty and the in-reward KL: what advantages are made from."""
        return self.seq_reward - self.kl_penalty


@dataclass(slots=True)
class RolloutGroup:
    """The n responses to one prompt."""

    problem: Problem
    prompt_ids: list[int]
    """[P] tokens of the templated prompt."""
    responses: list[Response]
    """n responses."""
    scores: list[Score] = field(default_factory=list)
    """n scores, filled by `score()`."""
    behind: int = 0
    """Updates since it was generated: more than 0 only for surplus that was carried."""
    pilot_only: bool = False
    """It ended with its pilot: too few responses to train on."""


@dataclass(slots=True)
class TrainBatch:
    """What one update trains on: B responses, those of a group side by side."""

    sequences: list[tuple[list[int], list[int]]] = field(default_factory=list)
    """B pairs (prompt tokens [P], response tokens [R])."""
    advantages: list[float] = field(default_factory=list)
    """[B], the same for every token of a response."""
    masks: list[list[bool]] = field(default_factory=list)
    """B x [R]; False keeps a token out of the loss: one that the policy didn't sample, or of a filtered response."""
    rollout_logprobs: list[list[float]] = field(default_factory=list)
    """B x [R] log-probabilities at generation; read where the mask is True only."""
    group_sizes: list[int] = field(default_factory=list)
    """Responses of each prompt, in order; sums to B."""
    carried: list[bool] = field(default_factory=list)
    """[B] True for a response of an earlier policy, whose old log-probs are those of its generation."""


@dataclass(frozen=True, slots=True)
class EvaluatedSample:
    """One sampled answer to one validation problem, kept whole so that any accuracy can be recomputed."""

    data_source: str
    problem_id: str
    sample_index: int
    """0..n-1 among the responses to this problem."""
    prompt: str
    response: str
    answer: str
    """The answer that was read from the response, or an empty string."""
    ground_truth: str
    correct: bool
    response_length: int
    """Tokens, what tools answered included."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a run has spent since its first step, work before a resume included.

    The objective's cost is `flops` or `tokens` (exact, repeatable) or `device_seconds` (real). Evaluation is
    counted apart, since every configuration pays the same for it.
    """

    flops: float = 0.0
    """Model FLOPs of generation and update, thrown-away work included."""
    tokens: int = 0
    """Tokens sampled for training, thrown-away ones included; what tools answered is none of them."""
    device_seconds: float = 0.0
    """Wall seconds x devices in generation, scoring and update."""
    evaluation_flops: float = 0.0
    evaluation_tokens: int = 0
    evaluation_device_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """What a trainer reports after each update (and at step 0, if it evaluates then)."""

    step: int
    """Updates done."""
    total_steps: int
    """Updates planned."""
    metrics: Mapping[str, float]
    """Scalars by MLflow name; `val/accuracy` (and `val/accuracy_se`, of more than one problem) are there when this step
    evaluated."""
    cost: Cost
    """Cumulative."""
    evaluation: tuple[EvaluatedSample, ...] = ()
    """All samples of this step's evaluation, or empty."""
    final: bool = False
    """The run is complete: evaluated at its full length."""


Report = Callable[[StepMetrics], bool]
"""Takes each step's metrics; returning False stops the run after a checkpoint."""

Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) during long preparation."""
