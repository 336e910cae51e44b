"""Configuration of the policy update: losses, batches, optimiser."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config_section import Decay, KLEstimate, NonNegativeFloat, PositiveFloat, PositiveInt, Section


class OptimConfig(Section):
    """AdamW."""

    lr: PositiveFloat = 1e-4
    """Learning rate after warm-up."""
    lr_warmup_steps: Annotated[int, Field(ge=0)] = 2
    """Updates of linear warm-up."""
    weight_decay: NonNegativeFloat = 0.0
    """Decoupled weight decay."""
    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """AdamW's moment decays."""


class PolicyLossConfig(Section):
    """Which policy loss."""

    loss_mode: Literal["vanilla", "gspo", "cispo", "geo_mean"] = "vanilla"
    """`vanilla`: clipped ratios (DAPO Eq. 10). `gspo`: one ratio a sequence (arXiv 2507.18071; clips about 3e-4).
    `cispo`: clipped weights that keep every token's gradient (arXiv 2506.13585). `geo_mean`: GMPO (arXiv
    2507.20673; clips about 0.4, of the log-ratio). `gspo` and `geo_mean` are the papers' with
    `loss_agg_mode: seq-mean-token-mean`."""


class FSDPConfig(Section):
    """How weights, gradients and optimiser lie on several processes (FSDP2); without effect on one."""

    fsdp_size: int = -1
    """Processes over which one copy lies in parts; -1 means all. With fewer there are several copies, whose gradients
    are summed (hybrid sharding): more memory, fewer messages between machines."""
    offload_policy: bool = False
    """Keep the parts in the host's memory, and the optimiser's work there too; only with an accelerator."""
    reshard_after_forward: bool = True
    """Give up a layer's weights after its forward pass, and gather them again for the backward one."""


class ActorConfig(Section):
    """The policy update."""

    policy_loss: PolicyLossConfig = PolicyLossConfig()
    """Which policy loss."""

    clip_ratio_low: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Lower clip of the ratio, epsilon_low (Eq. 10)."""
    clip_ratio_high: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.28
    """Upper clip of the ratio, epsilon_high (Eq. 10)."""
    clip_ratio_c: Annotated[float, Field(gt=1.0, allow_inf_nan=False)] = 10.0
    """Dual clip: bound of the loss at negative advantages. Only for `loss_mode: vanilla`."""
    loss_agg_mode: Literal[
        "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"
    ] = "token-mean"
    """`token-mean` divides by the tokens of the whole mini-batch, never of a micro-batch (nor of each group, as Eq. 12
    is written and verl doesn't do either); `seq-mean-token-sum-norm` by sequences and a constant length (Dr. GRPO)."""
    loss_scale_factor: PositiveInt | None = None
    """Tokens: the constant length of `seq-mean-token-sum-norm`; None means `data.max_response_length`."""
    use_kl_loss: bool = False
    """Add the KL to the initial policy to the loss; costs one forward pass over each batch."""
    kl_loss_coef: PositiveFloat = 0.001
    """Weight of the KL in the loss."""
    kl_loss_type: KLEstimate = "low_var_kl"
    """Estimate of the KL in the loss. `kl` (k1) has an expected gradient of zero; `k2`, `k1+` and `k3+` have the
    KL's own."""
    ppo_mini_batch_size: PositiveInt | None = None
    """Prompts (not responses) per optimiser step; None means `data.train_batch_size`, one step per update."""
    dynamic_bsz_warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Updates over which the batch grows linearly to `data.train_batch_size` prompts: cheap steps first, while the
    policy changes fast. Rounds of generation grow with it where `data.gen_batch_size` is None."""
    ppo_epochs: PositiveInt = 1
    """Passes over each batch."""
    use_dynamic_bsz: bool = True
    """Fill micro-batches by `ppo_max_token_len_per_gpu` tokens; off: by `ppo_micro_batch_size_per_gpu` responses.
    Either way the gradient is the same, and sequences are packed without padding."""
    ppo_max_token_len_per_gpu: PositiveInt = 8192
    """Tokens (prompt and response) per micro-batch; must hold the longest sequence. Log-probabilities without
    gradient go by it in any case."""
    ppo_micro_batch_size_per_gpu: PositiveInt | None = None
    """Responses per micro-batch. Only for `use_dynamic_bsz: false`."""
    use_prefix_grouper: bool = False
    """Compute the prompt that the responses of a group share once a micro-batch, and not once a response: the same
    gradients, up to rounding, for less compute; worth it where prompts aren't short beside responses."""
    use_torch_compile: bool = False
    """Compile the scoring and the layers' feed-forward parts (torch.compile): the same numbers up to rounding.
    Compiling takes its time at the start, so that it can only pay in long runs (`python -m benchmarks compiling`).
    Needs a C++ compiler."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus."""
    grad_clip: PositiveFloat = 1.0
    """Global gradient-norm clip."""
    ulysses_sequence_parallel_size: PositiveInt = 1
    """Devices that share one sequence in the update."""
    fsdp_config: FSDPConfig = FSDPConfig()
    """How the model lies on several devices."""
    optim: OptimConfig = OptimConfig()
    """Optimiser."""
