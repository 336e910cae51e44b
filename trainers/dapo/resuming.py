"""What a resumed run may change, and a confirming one. Everything else would mix two experiments."""

from __future__ import annotations

FREE = (
    "trainer",
    "algorithm.filter_groups",
    "data.gen_batch_size",
    "data.val",
    "data.val_size",
    "actor.fsdp_config",
    "actor.use_torch_compile",
    "actor.ulysses_sequence_parallel_size",
    "rollout.tensor_model_parallel_size",
)
"""Its length, place and devices, evaluation, and the knobs that get it out of an exhausted sampling."""
KEPT = ("trainer.seed", "trainer.resume_mode")
"""But not these: other random numbers; and whether it is a resumed run at all."""

MEASURING = ("data.val", "data.val_size", "rollout.val_kwargs", "reward.also", "actor.fsdp_config")
"""What a run that confirms another may have otherwise: how it is measured, and, with `trainer`, where it runs."""
LENGTH = ("trainer.total_training_steps", "trainer.total_epochs")


def free_to_change(path: str) -> bool:
    """Whether a run may be resumed with another value at a dotted path of its config."""
    return path not in KEPT and any(f"{path}.".startswith(f"{free}.") for free in FREE)


def trains_otherwise(path: str) -> bool:
    """Whether a run with another value at a dotted path of its config is trained otherwise, not only measured so."""
    sizes = ("actor.ulysses_sequence_parallel_size", "rollout.tensor_model_parallel_size")
    free = any(f"{path}.".startswith(f"{place}.") for place in (*MEASURING, *sizes, "trainer"))
    return path in LENGTH or not free
