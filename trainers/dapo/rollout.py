"""Generation in one turn, by the engine that the config names."""

from __future__ import annotations

from dapo.batch import Response
from dapo.config import Config
from dapo.draws import Sampling
from dapo.engine_base import RolloutEngine, Rows
from dapo.model import Policy
from dapo.tokenizer import Tokenizer


def engine_of(policy: Policy, config: Config) -> RolloutEngine:
    """Return the engine that generates from a policy's weights as they are; all processes must ask.

    Raises:
        DapoError: the package that the config names can't load the model.
    """
    if config.rollout.name == "vllm":
        from dapo.engine_vllm import VllmEngine

        if policy.served is not None and not policy.served.serves(config):
            policy.served.close()
            policy.served = None
        policy.served = policy.served or VllmEngine(config)
        policy.served.follow(policy)
        return policy.served
    return policy.model.engine(config.rollout, policy.world.tp)


def sample_rows(engine: RolloutEngine, tokenizer: Tokenizer, rows: Rows, sampling: Sampling) -> list[Response]:
    """Sample N responses in one turn each.

    Raises:
        NonFinite: the model's numbers are NaN or infinite.
    """
    found = engine.sample(rows, sampling, tokenizer.eos_id)
    texts = tokenizer.decode_batch([sampled.token_ids for sampled in found])
    return [
        Response(sampled.token_ids, sampled.logprobs, sampled.token_ids[-1] == tokenizer.eos_id, text)
        for sampled, text in zip(found, texts, strict=True)
    ]
