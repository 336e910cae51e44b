"""A policy that calls a tool and repeats what it says, taught in seconds; nothing about it is scripted."""

from collections.abc import Sequence
from functools import cache

import torch
from dapo.batch import Problem
from dapo.config_multi_turn import MultiTurnConfig, ToolName
from dapo.framing import Framing
from dapo.model import Decoder, DecoderConfig, Policy, response_logprobs
from dapo.muon import Muon
from dapo.tokenizer import Tokenizer, byte_tokenizer
from dapo.tool_calls import SIGNATURES, signatures_of
from dapo.warmstart import initialise

WORDS = (
    *"tool call response name calculator arguments expression python code again".split(),
    "Tools: ",
    "Use: ",
    "Answer: ",
    ": ",
    ", ",
)
SETTINGS: dict[ToolName, MultiTurnConfig] = {
    name: MultiTurnConfig(enable=True, tools=(name,)) for name in ("calculator", "python")
}
STEPS = 100
NUMBERS = range(8)
Example = tuple[list[int], Sequence[tuple[list[int], bool]]]
"""A prompt, and a response in parts, each with whether it is the policy's own."""


def call(text: str, tool: ToolName) -> str:
    parameter = SIGNATURES[tool].parameter
    return f'<tool_call>{{"name": "{tool}", "arguments": {{"{parameter}": "{text}"}}}}</tool_call>'


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
def taught(tool: ToolName) -> dict[str, torch.Tensor]:
    """Weights after supervision on `n+0`; only what the policy would say is taught. Programs come after sums."""
    policy = untaught(tool_tokenizer())
    examples = [example(policy.tokenizer, number, tool) for number in NUMBERS]
    examples += [example(policy.tokenizer, number, tool, again=True) for number in NUMBERS]
    matrices = [weight for weight in policy.model.model.layers.parameters() if weight.dim() == 2]
    others = [weight for weight in policy.model.parameters() if all(weight is not matrix for matrix in matrices)]
    optimizers = (Muon(matrices, lr=0.02, weight_decay=0.0), torch.optim.AdamW(others, lr=5e-3))
    if tool != "calculator":
        policy.model.load_state_dict(taught("calculator"))
    supervise(policy, examples, optimizers, STEPS if tool == "calculator" else 40)
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def supervise(
    policy: Policy, examples: Sequence[Example], optimizers: Sequence[torch.optim.Optimizer], steps: int
) -> None:
    pairs = [(prompt, [token for part, _ in parts for token in part]) for prompt, parts in examples]
    masks = torch.tensor([float(said) for _, parts in examples for part, said in parts for _ in part])
    for _ in range(steps):
        logprobs, _ = response_logprobs(policy.model, pairs, 1.0)
        policy.model.zero_grad()
        torch.autograd.backward(-(logprobs * masks).sum() / masks.sum())
        for optimizer in optimizers:
            optimizer.step()


def careless_policy() -> Policy:
    """A copy that took on a bad habit: it calls, reads, and mostly answers something else."""
    policy = tool_policy()
    examples = [careless(policy.tokenizer, number) for number in NUMBERS]
    supervise(policy, examples, [torch.optim.AdamW(policy.model.parameters(), lr=1e-3)], 4)
    return policy


def tool_policy(tool: ToolName = "calculator") -> Policy:
    """A fresh copy of the taught policy."""
    policy = untaught(tool_tokenizer())
    policy.model.load_state_dict(taught(tool))
    return policy


def careless(tokenizer: Tokenizer, number: int) -> Example:
    """The same, but what the tool said is not what the policy says."""
    prompt, (called, read, _) = example(tokenizer, number)
    return prompt, [called, read, ([*tokenizer.encode("Answer: 9"), tokenizer.eos_id], True)]


def example(tokenizer: Tokenizer, number: int, tool: ToolName = "calculator", *, again: bool = False) -> Example:
    """A call, what the tool answers, and what the policy says then; a tool may ask for another call."""
    framing = Framing(tokenizer, None, signatures_of(SETTINGS[tool]))
    prompt = tokenizer.encode(framing.prompt(Problem(str(number), "s", f"{number}+0", str(number)), tools=True))
    called = [*tokenizer.encode(call(f"{number}+0", tool)), tokenizer.eos_id]
    answered = [*tokenizer.encode(f"Answer: {number}"), tokenizer.eos_id]
    read = framing.answers(["again" if again else str(number)], SETTINGS[tool])
    return prompt, [(called, True), (read, False), (called if again else answered, True)]
