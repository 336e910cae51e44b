"""The trainer's configuration: what a user may write, with verl's names where verl has the field.

Only pydantic is imported here, so that a spec can be validated in milliseconds. Checks that need a file, a
model or a device are in `dapo.preflight`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dapo.config_actor import ActorConfig
from dapo.config_multi_turn import MultiTurnConfig
from dapo.config_section import Fraction, KLEstimate, NonNegativeFloat, PositiveFloat, PositiveInt, Section
from dapo.config_trainer import DEFAULT_UPDATES, TrainerConfig


class ModelConfig(Section):
    """The policy to train."""

    path: str = "tiny"
    """`tiny` (embedded, warm-started on first use), `smollm2-135m` (fetched on first use), a Hugging Face folder, or
    the id `owner/name` of a model on the hub, which is downloaded on first use."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub; None takes its main branch as it was when it was downloaded."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameter and activation type."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """Rank of a LoRA adapter (needs the extra `lora`): it alone is trained. 0 trains all weights. FLOPs are counted as
    without one: the gradients of frozen weights that aren't computed, a third of an update at most, are in them."""
    lora_alpha: PositiveInt = 16
    """The adapter's product is scaled by this over the rank. Only with an adapter."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Projections that have an adapter: all, or those named, such as `q_proj`. Only with an adapter."""
    enable_gradient_checkpointing: bool = False
    """Keep only each layer's input for the backward pass and compute the rest again: the same gradients in less
    memory, for a third more compute in the update."""
    use_remove_padding: bool = True
    """Compute log-probabilities and gradients on packed sequences. Off: on micro-batches padded to their longest
    sequence, for comparison: the same numbers in more time and memory. The padding is in no budget and no FLOPs."""


class SelectionConfig(Section):
    """Which prompts a generation round asks about; see `dapo.selection`."""

    strategy: Literal["shuffle", "thompson"] = "shuffle"
    """`shuffle` walks through the training set, in another order each epoch. `thompson` prefers prompts whose pass
    rate is likely near `target`, by what earlier rounds found."""
    target: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Pass rate that is worth most: at 0.5 a group's rewards differ most."""
    exploration: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """Least share of each round that follows the shuffled order, whatever is known. Less of it asks a few prompts
    again and again while little of a large set is known, and costs generality."""
    forgetting: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Evidence is discounted by this for each update since: the policy has changed. 1 never forgets."""


class DataConfig(Section):
    """Prompts, batch sizes and length limits. Batch sizes count prompts, lengths count tokens."""

    train: str = "arithmetic"
    """`arithmetic` (generated) or a .jsonl / .parquet file; see `dapo.data`."""
    val: str = "arithmetic-aime"
    """`arithmetic-aime` (generated) or a .jsonl / .parquet file."""
    val_size: PositiveInt | None = None
    """Evaluate on the first `val_size` problems only; None takes all."""
    train_batch_size: PositiveInt = 32
    """Prompts per update."""
    gen_batch_size: PositiveInt | None = None
    """Prompts per generation round; None means `train_batch_size`. May be smaller or larger than it."""
    max_prompt_length: PositiveInt = 64
    """Longer prompts are an error unless `filter_overlong_prompts`."""
    filter_overlong_prompts: bool = False
    """Leave out prompts longer than `max_prompt_length`; the number left out is reported."""
    max_response_length: PositiveInt = 48
    """Generation stops here; such a response counts as truncated."""
    selection: SelectionConfig = SelectionConfig()
    """Which prompts are asked about."""
    prompt_template: str | None = None
    """Text around a problem, with `{problem}` in it; None takes the model's own."""

    @model_validator(mode="after")
    def _template_holds_problem(self) -> Self:
        if self.prompt_template is not None and "{problem}" not in self.prompt_template:
            raise ValueError("{problem} in prompt_template; write where the problem goes")
        return self


class AdaptiveConfig(Section):
    """A filter that gives way when groups run short: late in an update's rounds its bound is lowered, for good."""

    enable: bool = False
    """Lower `threshold` (`statistic: mean`) or `tolerance` (`spread`) when an update runs short."""
    start: Fraction = 0.8
    """After each round from this fraction of `max_num_gen_batches` on, while groups are missing…"""
    factor: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.9
    """… the bound is multiplied by this …"""
    floor: NonNegativeFloat = 0.1
    """… but never below this."""


class FilterGroupsConfig(Section):
    """Dynamic sampling (DAPO, arXiv 2503.14476, Eq. 11): keep the groups that carry a gradient."""

    enable: bool = True
    """Off: every group is trained on, as in GRPO."""
    metric: str = "acc"
    """`acc` and `score` are read before shaping, `seq_reward` after the overlong penalty, `seq_final_reward`
    after the in-reward KL too; any other key must be returned by the reward function."""
    statistic: Literal["spread", "mean"] = "spread"
    """`spread` keeps a group whose max - min exceeds `tolerance`; `mean` one whose mean lies strictly between
    `threshold` and `upper`."""
    threshold: float = 0.0
    """Lower bound of the mean, exclusive. Only for `statistic: mean`."""
    upper: float = 1.0
    """Upper bound of the mean, exclusive. Only for `statistic: mean`."""
    tolerance: NonNegativeFloat = 1e-6
    """A spread up to this counts as equal rewards (0.1 three times has a non-zero standard deviation)."""
    max_num_gen_batches: int = 10
    """Generation rounds per update; <= 0 is endless, but for a stop when the whole training set (and at least 512
    groups) was drawn in a row without one group to keep."""
    adaptive: AdaptiveConfig = AdaptiveConfig()
    """Lower the bound late in an update's rounds."""
    on_exhausted: Literal["error", "train_partial", "relax"] = "error"
    """Still short of `train_batch_size` groups at the cap: stop the run with a checkpoint; train on what there is
    (and skip the update if that is nothing); or fill up with the filtered groups nearest to the rule. A group with
    equal rewards never fills up: it has no gradient, and would only dilute the mean over tokens."""
    surplus: Literal["drop", "carry"] = "drop"
    """Groups that passed the filter beyond `train_batch_size`: thrown away (verl), or trained on in the next
    update, as off-policy data: their ratio is to the policy that generated them."""
    surplus_max_staleness: PositiveInt = 1
    """Carried groups that are more than so many updates old are thrown away."""


class KLControlConfig(Section):
    """Weight of the KL in the reward."""

    type: Literal["fixed"] = "fixed"
    """The weight stays what it is."""
    kl_coef: PositiveFloat = 0.001
    """beta: the sum of the response's KL, times this, is taken off its reward."""


class RolloutCorrectionConfig(Section):
    """Correction of the mismatch between the engine that generates and the trainer (verl's `rollout_correction`)."""

    rollout_is: Literal["token", "sequence"] | None = None
    """Weight each loss by pi_trainer / pi_rollout, truncated: of the `token`, or of the `sequence` (the product
    of its tokens' ratios). None corrects nothing; the mismatch is measured either way."""
    rollout_is_threshold: PositiveFloat = 2.0
    """Largest weight."""


class AlgorithmConfig(Section):
    """Advantages and sampling."""

    adv_estimator: Literal["grpo", "rloo"] = "grpo"
    """`grpo`: relative to the group's mean (DAPO Eq. 9). `rloo`: relative to the mean of the others (arXiv
    2402.14740), not divided by the deviation."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation; off gives Dr. GRPO's advantage. Only for `grpo`."""
    use_kl_in_reward: bool = False
    """Take the KL to the initial policy off the reward; costs two forward passes over all that is generated. A
    filter on `seq_final_reward` then sees rewards that are hardly ever equal."""
    kl_penalty: KLEstimate = "kl"
    """Estimate of the KL in the reward."""
    kl_ctrl: KLControlConfig = KLControlConfig()
    """Weight of the KL in the reward."""
    rollout_correction: RolloutCorrectionConfig = RolloutCorrectionConfig()
    """Truncated importance sampling."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Dynamic sampling."""


SAMPLING_PRESETS: dict[str, dict[str, float]] = {"aime": {"n": 32, "temperature": 1.0, "top_p": 0.7, "top_k": -1}}
"""Evaluation protocols by name. `aime`: DAPO's, avg@32 (arXiv 2503.14476, section 4.1)."""


class SamplingConfig(Section):
    """How responses are drawn at evaluation."""

    preset: Literal["aime"] | None = None
    """A published protocol, which sets all of the fields below: `aime` is 32 responses per problem at temperature
    1.0 and top_p 0.7, whether the file holds each problem once or 32 times."""
    n: PositiveInt = 4
    """Responses per row; a problem that stands in several rows has as many more."""
    temperature: NonNegativeFloat = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7
    """Nucleus mass."""
    top_k: int = -1
    """Candidates kept; <= 0 keeps all."""

    @model_validator(mode="before")
    @classmethod
    def _follow_preset(cls, values: Any) -> Any:
        preset = SAMPLING_PRESETS.get(str(values.get("preset"))) if isinstance(values, dict) else None
        return values if preset is None else {**preset, **values}

    @model_validator(mode="after")
    def _is_the_preset(self) -> Self:
        for name, value in SAMPLING_PRESETS.get(self.preset or "", {}).items():
            if getattr(self, name) != value:
                raise ValueError(
                    f"{name}: {value}, the preset {self.preset}'s, where {getattr(self, name)} is set; leave one out"
                )
        return self


class RolloutConfig(Section):
    """Generation for training."""

    name: Literal["builtin", "vllm"] = "builtin"
    """The engine that generates. `builtin`: the trainer's own. `vllm`: the package, where it is installed, in a process
    of its own that is told the weights before each round. The same seed then draws other tokens."""
    dtype: Literal["auto", "float32", "bfloat16"] | None = None
    """What generation computes in; None: in `model.dtype`, so that what is sampled is what is trained. `auto`: in
    bfloat16 where the device is fast at it (an accelerator that has it, a processor with AMX), in float32 elsewhere.
    Another type than the model's samples from a slightly other policy: see `rollout/logprob_diff_mean`, and
    `algorithm.rollout_correction`."""
    n: PositiveInt = 8
    """Responses per prompt: the group size G."""
    pilot_n: PositiveInt | None = None
    """Sample so many responses first, and the other `n - pilot_n` only for groups whose first ones pass the filter
    already; None samples all `n` at once. See `dapo.rounds`."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Nucleus mass."""
    top_k: int = -1
    """Candidates kept; <= 0 keeps all."""
    max_num_seqs: PositiveInt = 512
    """Responses decoded at once: the KV cache has room for so many of the greatest length. Waiting ones take the places
    of those that end."""
    max_num_batched_tokens: PositiveInt = 8192
    """Prompt tokens read at once; a longer prompt is read alone."""
    tensor_model_parallel_size: PositiveInt = 1
    """Devices that share one copy of the model in generation."""
    val_kwargs: SamplingConfig = SamplingConfig()
    """Sampling at evaluation."""
    multi_turn: MultiTurnConfig = MultiTurnConfig()
    """Turns and tools."""


class OverlongBufferConfig(Section):
    """Soft overlong punishment (DAPO Eq. 13), clamped at -penalty_factor."""

    enable: bool = False
    """Add the penalty to the score."""
    len: PositiveInt = 16
    """Tokens before `max_response_length` over which the penalty grows linearly."""
    penalty_factor: NonNegativeFloat = 1.0
    """Penalty at `max_response_length`."""


class RewardConfig(Section):
    """How a response is scored."""

    grader: Literal["integer", "number", "math_dapo", "math_verify", "symbolic", "custom"] = "integer"
    """`integer`: the last stated answer, as an integer (AIME's rule). `number`: as a number, so that 0.5 is 1/2.
    `math_dapo`: verl's, verdict for verdict. `math_verify`: the package's, for symbolic answers. `symbolic`: golds
    that are numbers as `number`, all others as `math_verify`. `custom`: `custom_reward_function`."""
    also: tuple[Literal["integer", "number", "math_dapo", "math_verify", "symbolic"], ...] = ()
    """Graders that grade too, without a say in the reward; how far they agree is logged."""
    custom_reward_function: str | None = None
    """`package.module:function`, called as f(data_source, solution_str, ground_truth, extra_info), which returns
    a float, or a dict with `score`, perhaps `acc` and `pred`, and any numbers to filter on."""
    correct_reward: float = 1.0
    """Score of a right answer."""
    wrong_reward: float = -1.0
    """Score of a wrong one."""
    overlong_buffer: OverlongBufferConfig = OverlongBufferConfig()
    """Penalty on long responses."""
    overlong_filtering: bool = False
    """Mask truncated responses out of the loss."""

    timeout_s: PositiveFloat | None = 10.0
    """Seconds that `math_verify`, `symbolic` or a custom function may take for one response, in a process that is
    killed then; the response counts as wrong. None calls a custom function in the trainer's process, unlimited."""
    num_workers: PositiveInt = 1
    """Processes that grade side by side, where grading takes a process."""

    @model_validator(mode="after")
    def _custom_has_function(self) -> Self:
        if (self.grader == "custom") != (self.custom_reward_function is not None):
            raise ValueError("grader: custom together with custom_reward_function; set both or neither")
        return self

    @model_validator(mode="after")
    def _symbolic_has_limit(self) -> Self:
        unlimited = {self.grader, *self.also} & {"math_verify", "symbolic"} if self.timeout_s is None else set()
        if unlimited:
            raise ValueError(
                f"timeout_s with the grader {min(unlimited)}, which may compute for ever; set a number of seconds"
            )
        return self

    @model_validator(mode="after")
    def _also_are_others(self) -> Self:
        if self.grader in self.also or len(set(self.also)) < len(self.also):
            raise ValueError("other graders in also than the reward's, each once; take the repeated one out")
        return self


class Config(Section):
    """One training run, in full."""

    REPLACED: ClassVar[Mapping[str, tuple[str, str]]] = {
        "use_hccl_checkpoint": (
            "no such key: on NPUs all that processes exchange goes over HCCL, what they gather for a checkpoint too",
            "leave it out",
        ),
        "npu_enable_async_allreduce": (
            "no such key: gradients are summed while the backward pass still runs, on every kind of device (FSDP2)",
            "leave it out",
        ),
    }
    """By a key that recipes for NPUs have: what is needed in its place, and what to do."""
    model: ModelConfig = ModelConfig()
    """Policy."""
    data: DataConfig = DataConfig()
    """Prompts and batch sizes."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """Advantages and dynamic sampling."""
    actor: ActorConfig = ActorConfig()
    """Update."""
    rollout: RolloutConfig = RolloutConfig()
    """Generation."""
    reward: RewardConfig = RewardConfig()
    """Scoring."""
    trainer: TrainerConfig = TrainerConfig()
    """Length, evaluation, checkpoints."""

    @property
    def gen_batch_size(self) -> int:
        """Prompts per generation round."""
        return self.data.gen_batch_size or self.data.train_batch_size

    def train_batch_size_at(self, step: int) -> int:
        """Prompts of update `step` (1, 2, …): the batch grows over `dynamic_bsz_warmup_steps` updates."""
        full, steps = self.data.train_batch_size, self.actor.dynamic_bsz_warmup_steps
        return full if step >= steps else max(1, -(-full * step // steps))

    def gen_batch_size_at(self, step: int) -> int:
        """Prompts per generation round of update `step`."""
        return self.data.gen_batch_size or self.train_batch_size_at(step)

    def planned_updates(self, prompts: int) -> int:
        """Updates of a run on a training set of so many prompts."""
        if self.trainer.total_epochs is None:
            return self.trainer.total_training_steps or DEFAULT_UPDATES
        left, step = self.trainer.total_epochs * prompts, 0
        while step + 1 < self.actor.dynamic_bsz_warmup_steps and left >= self.train_batch_size_at(step + 1):
            step += 1
            left -= self.train_batch_size_at(step)
        return max(1, step + left // self.data.train_batch_size)

    @property
    def loss_scale_factor(self) -> int:
        """Tokens that `seq-mean-token-sum-norm` divides by."""
        return self.actor.loss_scale_factor or self.data.max_response_length

    @property
    def needs_reference(self) -> bool:
        """Whether the initial policy is kept, to measure the distance from it."""
        return self.actor.use_kl_loss or self.algorithm.use_kl_in_reward

    @property
    def mini_batch_size(self) -> int:
        """Prompts per optimiser step."""
        return self.actor.ppo_mini_batch_size or self.data.train_batch_size
