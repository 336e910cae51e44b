"""The trainer's configuration: what a user may write, with verl's names where verl has the field.

Only pydantic is imported here, so that a spec can be validated in milliseconds. Checks that need a file, a
model or a device are in `dapo.preflight`.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Section(BaseModel):
    """A part of the configuration: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class ModelConfig(Section):
    """The policy to train."""

    path: str = "tiny"
    """`tiny` (embedded, warm-started on first use) or a Hugging Face folder of the Llama or Qwen2 family."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameter and activation type."""


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
            raise ValueError("prompt_template must contain {problem}")
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


class AlgorithmConfig(Section):
    """Advantages and sampling."""

    adv_estimator: Literal["grpo"] = "grpo"
    """Group-relative advantage (DAPO Eq. 9)."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide by the group's standard deviation; off gives Dr. GRPO's advantage."""
    filter_groups: FilterGroupsConfig = FilterGroupsConfig()
    """Dynamic sampling."""


class OptimConfig(Section):
    """AdamW."""

    lr: PositiveFloat = 1e-4
    """Learning rate after warm-up."""
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 2
    """Updates of linear warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's moment decays."""


class ActorConfig(Section):
    """The policy update."""

    clip_ratio_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Lower clip of the ratio, epsilon_low (Eq. 10)."""
    clip_ratio_high: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.28
    """Upper clip of the ratio, epsilon_high (Eq. 10)."""
    clip_ratio_c: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] = 10.0
    """Dual clip: bound of the loss at negative advantages."""
    loss_agg_mode: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """`token-mean` divides by the tokens of the whole mini-batch (Eq. 12), never of a micro-batch."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Prompts (not responses) per optimiser step; None means `data.train_batch_size`, one step per update."""
    ppo_epochs: PositiveInt = 1
    """Passes over each batch."""
    ppo_max_token_len_per_gpu: PositiveInt = 8192
    """Tokens (prompt and response) per micro-batch; must hold the longest sequence."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    grad_clip: PositiveFloat = 1.0
    """Global gradient-norm clip."""
    ulysses_sequence_parallel_size: PositiveInt = 1
    """Devices that share one sequence in the update."""
    optim: OptimConfig = OptimConfig()
    """Optimiser."""


class SamplingConfig(Section):
    """How responses are drawn at evaluation."""

    n: PositiveInt = 4
    """Responses per problem."""
    temperature: NonNegativeFloat = 1.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7
    """Nucleus mass."""
    top_k: int = -1
    """Candidates kept; <= 0 keeps all."""


class RolloutConfig(Section):
    """Generation for training."""

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
    """Responses decoded at once."""
    tensor_model_parallel_size: PositiveInt = 1
    """Devices that share one copy of the model in generation."""
    val_kwargs: SamplingConfig = SamplingConfig()
    """Sampling at evaluation."""


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

    grader: Literal["integer", "number", "custom"] = "integer"
    """`integer`: the last stated answer, as an integer (AIME's rule). `number`: as a number, so that 0.5 is 1/2.
    `custom`: `custom_reward_function`."""
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

    @model_validator(mode="after")
    def _custom_has_function(self) -> Self:
        if (self.grader == "custom") != (self.custom_reward_function is not None):
            raise ValueError("grader: custom and custom_reward_function go together; set both or neither")
        return self


class TrainerConfig(Section):
    """The run: its length, evaluation, checkpoints and place."""

    total_training_steps: PositiveInt = 30
    """Updates."""
    test_freq: int = 10
    """Evaluate every so many updates; <= 0 only at the end. The last update is always evaluated."""
    val_before_train: bool = True
    """Evaluate before the first update."""
    save_freq: int = 10
    """Checkpoint every so many updates; <= 0 only at the end. The last update is always saved."""
    max_ckpt_to_keep: PositiveInt = 2
    """Older checkpoints are deleted."""
    default_local_dir: str | None = None
    """Folder for checkpoints; None keeps none. A run started again on the same folder resumes."""
    resume_mode: Literal["auto", "disable"] = "auto"
    """`auto` continues from the latest checkpoint in `default_local_dir`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seeds data order, sampling and evaluation."""
    device: str = "auto"
    """`auto`, `cpu` or `cuda`."""
    num_threads: PositiveInt | None = None
    """CPU threads of this run; None takes all. Set before torch loads where the run has its own process."""


class Config(Section):
    """One training run, in full."""

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

    @property
    def mini_batch_size(self) -> int:
        """Prompts per optimiser step."""
        return self.actor.ppo_mini_batch_size or self.data.train_batch_size
