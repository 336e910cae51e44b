"""One process of a mesh: trains an update in each layout; the leading one tells how far from one process it is."""

from __future__ import annotations

import json
import sys

import torch
from dapo.batch import TrainBatch
from dapo.config import Config, RolloutConfig
from dapo.device import choose_device
from dapo.draws import Sampling
from dapo.engine_base import Rows
from dapo.model import Policy
from dapo.model_config import DecoderConfig
from dapo.model_decoder import Decoder
from dapo.packing import trained_segments
from dapo.parallel import World, processes_end_together
from dapo.sharding import shard, whole_tensor
from dapo.tokenizer import Tokenizer
from dapo.update import compute_logprobs, make_optimizer, policy_update
from small_policy import small_policy

LENGTHS = (3, 9, 17, 4, 30, 5, 6, 11)
SHAPE = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "eos_token_id": 1,
}


def fresh_policy(family: str) -> Policy:
    """A model of a family with random weights, the same in every process."""
    tokenizer: Tokenizer = small_policy().tokenizer
    if family == "tiny":
        return small_policy()
    torch.manual_seed(0)
    shape = {"llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}, "qwen3": {}}[family]
    tied = family == "qwen3"
    config = DecoderConfig.from_dict(
        SHAPE | shape | {"vocab_size": tokenizer.vocab_size + 3, "tie_word_embeddings": tied}
    )
    model = Decoder(config)
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.2)
    return Policy(model, tokenizer, config)


def fixed_batch(vocabulary: int) -> TrainBatch:
    """Eight responses of skewed lengths."""
    draw = torch.Generator().manual_seed(3)

    def ids(size: int) -> list[int]:
        return torch.randint(2, vocabulary, (size,), generator=draw).tolist()

    prompts = [ids(4), ids(6)]
    return TrainBatch(
        sequences=[(prompts[index // 4], ids(length)) for index, length in enumerate(LENGTHS)],
        advantages=[1.0, -1.0, 0.5, -0.5] * 2,
        masks=[[True] * length for length in LENGTHS],
        rollout_logprobs=[[-1.0] * length for length in LENGTHS],
        group_sizes=[4, 4],
        carried=[False] * len(LENGTHS),
    )


def outcome(policy: Policy, config: Config) -> dict[str, torch.Tensor]:
    """Log-probabilities, the gradient and the metrics of an update, and what is generated, all whole."""
    batch = fixed_batch(policy.config.vocab_size)
    optimizer = make_optimizer(policy, config.actor.optim)
    scored = torch.cat(compute_logprobs(policy, batch.sequences, config))
    result = policy_update(policy, optimizer, batch, config, 1)
    gradient = [whole_tensor(w.grad).flatten() for w in policy.model.parameters() if w.grad is not None]
    # Fewer slots than rows, of skewed lengths, so that some enter late.
    engine = policy.model.engine(RolloutConfig(max_num_seqs=3), policy.world.tp)
    uniforms = torch.rand(7, 12, generator=torch.Generator().manual_seed(1))
    limits = torch.tensor([3, 12, 5, 12, 2, 7, 12])
    rows = Rows([[3, 4, 5], [7, 8], [9, 10, 11, 12]], torch.tensor([0, 0, 1, 1, 2, 2, 2]), uniforms, limits)
    sampled = engine.sample(rows, Sampling(1.0, 1.0, -1), -1)
    numbers = [result.metrics[name] for name in ("actor/pg_loss", "actor/entropy", "actor/grad_norm")]
    return {
        "scored": scored,
        "gradient": torch.cat(gradient),
        "metrics": torch.tensor(numbers),
        "tokens": torch.tensor([token for row in sampled for token in row.token_ids]),
        "generated": torch.tensor([value for row in sampled for value in row.logprobs]),
        "segments": torch.tensor([sum(length for _, length in trained_segments(batch, config, policy.world.dp.size))]),
    }


def main() -> None:
    """Compare every layout on standard input with one process."""
    torch.set_num_threads(1)
    layouts = json.loads(sys.argv[1])
    found = []
    with processes_end_together():
        for layout in layouts:
            config = Config.model_validate(layout["config"])
            alone = fresh_policy(layout["family"])
            policy = fresh_policy(layout["family"])
            for one in (alone, policy):
                one.model.gradient_checkpointing = config.model.enable_gradient_checkpointing
                one.model.remove_padding = config.model.use_remove_padding
            policy.world = World.of(config, choose_device("cpu"))
            shard(policy, config.actor.fsdp_config)
            expected, got = outcome(alone, config), outcome(policy, config)
            found.append({name: (got[name] - expected[name]).abs().max().item() for name in expected})
            found[-1]["size"] = expected["gradient"].abs().max().item()
        if policy.world.leads:
            sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
