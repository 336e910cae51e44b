"""A policy that calls the calculator and repeats what it says, taught in seconds; nothing about it is scripted."""

from collections.abc import Sequence
from functools import cache

import torch
from dapo.batch import Problem
from dapo.config_multi_turn import MultiTurnConfig
from dapo.framing import Framing
from dapo.model import Decoder, DecoderConfig, Policy, response_logprobs
from dapo.tokenizer import Tokenizer, byte_tokenizer
from dapo.tool_calls import signatures_of
from dapo.warmstart import initialise

WORDS = ("Tools", "tool", "call", "response", "name", "calculator", "arguments", "expression", "Answer: ", "Use")
SETTINGS = MultiTurnConfig(enable=True)
STEPS = 90


def call(expression: str, name: str = "calculator") -> str:
    parameter = "code" if name == "python" else "expression"
    return f'<tool_call>{{"name": "{name}", "arguments": {{"{parameter}": "{expression}"}}}}</tool_call>'


def tool_tokenizer() -> Tokenizer:
    return byte_tokenizer(WORDS)


def untaught(tokenizer: Tokenizer) -> Policy:
    config = DecoderConfig(
        model_type="llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )
    model = Decoder(config)
    initialise(model, torch.Generator().manual_seed(1))
    return Policy(model, tokenizer, config)


@cache
def taught() -> dict[str, torch.Tensor]:
    """Weights after supervision on `n+0` with and without tools; only what the policy would say is taught."""
    policy = untaught(tool_tokenizer())
    examples = [example(policy.tokenizer, number) for number in range(10)]
    pairs = [(prompt, [token for part, _ in parts for token in part]) for prompt, parts in examples]
    masks = torch.tensor([float(said) for _, parts in examples for part, said in parts for _ in part])
    matrices = [weight for weight in policy.model.model.layers.parameters() if weight.dim() == 2]
    others = [weight for weight in policy.model.parameters() if all(weight is not matrix for matrix in matrices)]
    optimizers = (torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0), torch.optim.AdamW(others, lr=5e-3))
    for _ in range(STEPS):
        logprobs, _ = response_logprobs(policy.model, pairs, 1.0)
        policy.model.zero_grad()
        torch.autograd.backward(-(logprobs * masks).sum() / masks.sum())
        for optimizer in optimizers:
            optimizer.step()
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def tool_policy() -> Policy:
    """A fresh copy of the taught policy."""
    policy = untaught(tool_tokenizer())
    policy.model.load_state_dict(taught())
    return policy


def example(tokenizer: Tokenizer, number: int) -> tuple[list[int], Sequence[tuple[list[int], bool]]]:
    """A prompt, and a response in parts, each with whether it is the policy's own."""
    framing = Framing(tokenizer, None, signatures_of(SETTINGS))
    prompt = tokenizer.encode(framing.prompt(Problem(str(number), "s", f"{number}+0", str(number)), tools=True))
    return prompt, [
        ([*tokenizer.encode(call(f"{number}+0")), tokenizer.eos_id], True),
        (framing.answers([str(number)], SETTINGS), False),
        ([*tokenizer.encode(f"Answer: {number}"), tokenizer.eos_id], True),
    ]
