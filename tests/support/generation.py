"""Responses in one turn, asked for as the trainer does."""

from collections.abc import Sequence

import torch
from dapo.batch import Response
from dapo.config import Config, RolloutConfig
from dapo.draws import Sampling
from dapo.engine import Engine
from dapo.model import Decoder, Policy
from dapo.multi_turn import converse

PLAIN = Sampling(1.0, 1.0, -1)


def respond(
    policy: Policy,
    prompts: Sequence[list[int]],
    n: int,
    *,
    seed: int = 0,
    sampling: Sampling = PLAIN,
    room: int = 20,
    longest: int | None = None,
    **rollout: object,
) -> list[list[Response]]:
    """Sample `n` responses of up to `room` tokens to each prompt; `rollout` has keys of the config's section."""
    config = config_of(longest or max(map(len, prompts), default=1), room, **rollout)
    return converse(
        policy,
        prompts,
        [False] * len(prompts),
        n,
        sampling=sampling,
        config=config,
        toolbox=None,
        generator=torch.Generator().manual_seed(seed),
    )


def config_of(longest: int, room: int, **rollout: object) -> Config:
    """A config of prompts up to `longest` and responses up to `room` tokens; `rollout` has keys of its section."""
    limits = {"max_response_length": room, "max_prompt_length": longest}
    return Config.model_validate({"data": limits, "rollout": rollout})


def engine(policy: Policy, **rollout: object) -> Engine:
    """The trainer's own engine, of a policy's weights as they are."""
    assert isinstance(policy.model, Decoder)
    return policy.model.engine(RolloutConfig.model_validate(rollout))
