"""Checks of what belongs to the update: settings that another setting keeps from being read, or asks for."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel

from dapo.batch import Fault
from dapo.config import Config


def loss_faults(config: Config, planned: int | None) -> Iterator[Fault]:
    """Return the faults; a setting that was set and that nothing reads is a mistake, not a preference.

    Args:
        config: valid by its types.
        planned: updates of the run; None where that takes reading a large file.
    """
    actor, algorithm = config.actor, config.algorithm
    if actor.loss_agg_mode != "seq-mean-token-sum-norm":
        yield from _unread(
            actor, "actor", ("loss_scale_factor",), f"loss_agg_mode: {actor.loss_agg_mode}", "seq-mean-token-sum-norm"
        )
    if planned is not None and actor.dynamic_bsz_warmup_steps > planned:
        need = f"at most the {planned} updates of the run (trainer.total_training_steps, or total_epochs)"
        do = "lower it: the batch would never be whole"
        yield Fault("actor.dynamic_bsz_warmup_steps", str(actor.dynamic_bsz_warmup_steps), need, do)
    if actor.use_dynamic_bsz:
        name = "ppo_micro_batch_size_per_gpu"
        yield from _unread(actor, "actor", (name,), "use_dynamic_bsz: true", "false")
    elif actor.ppo_micro_batch_size_per_gpu is None:
        need = "a number of responses with use_dynamic_bsz: false"
        yield Fault("actor.ppo_micro_batch_size_per_gpu", "None", need, "set it, or set use_dynamic_bsz: true")
    mode = actor.policy_loss.loss_mode
    if mode != "vanilla":
        yield from _unread(actor, "actor", ("clip_ratio_c",), f"policy_loss.loss_mode: {mode}", "vanilla")
    if not actor.use_kl_loss:
        yield from _unread(actor, "actor", ("kl_loss_coef", "kl_loss_type"), "use_kl_loss: false", "true")
    if not algorithm.use_kl_in_reward:
        off = "algorithm.use_kl_in_reward: false"
        yield from _unread(algorithm, "algorithm", ("kl_penalty",), off, "true")
        yield from _unread(algorithm.kl_ctrl, "algorithm.kl_ctrl", ("kl_coef",), off, "true")
    if algorithm.adv_estimator != "grpo":
        setting = f"adv_estimator: {algorithm.adv_estimator}"
        yield from _unread(algorithm, "algorithm", ("norm_adv_by_std_in_grpo",), setting, "grpo")
    correction = algorithm.rollout_correction
    if correction.rollout_is is None:
        key = "algorithm.rollout_correction"
        yield from _unread(correction, key, ("rollout_is_threshold",), "rollout_is: null", "token or sequence")


def _unread(section: BaseModel, path: str, names: tuple[str, ...], setting: str, other: str) -> Iterator[Fault]:
    for name in names:
        value = getattr(section, name)
        if value != type(section).model_fields[name].default:
            need = f"its default with {setting}, which doesn't read it"
            yield Fault(f"{path}.{name}", str(value), need, f"leave it out, or set that to {other}")
