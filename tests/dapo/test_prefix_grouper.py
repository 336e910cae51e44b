"""`actor.use_prefix_grouper`: prompts are computed once a micro-batch, and nothing else changes."""

import copy

import pytest
import torch
from dapo.accounting import pass_flops
from dapo.batch import TrainBatch
from dapo.model import response_logprobs
from dapo.packing import scored_segments, trained_segments
from dapo.train import train
from dapo.update import compute_logprobs, make_optimizer, policy_update

PROMPTS = ([5, 6, 7], [9, 8, 7, 6, 5, 4, 3], [5])
SIZES = (4, 2, 3)


def grouped_batch() -> TrainBatch:
    """Three groups; responses of 1 to 6 tokens, which cross the buckets' bounds."""
    draw = torch.Generator().manual_seed(3)
    sequences = [
        (list(prompt), torch.randint(2, 200, (1 + (3 * index) % 6,), generator=draw).tolist())
        for prompt, size in zip(PROMPTS, SIZES, strict=True)
        for index in range(size)
    ]
    return TrainBatch(
        sequences=sequences,
        advantages=[(-1.0) ** index * (1 + index / 4) for index in range(len(sequences))],
        masks=[[True] * len(response) for _, response in sequences],
        rollout_logprobs=[[-5.0] * len(response) for _, response in sequences],
        group_sizes=list(SIZES),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_shared_prompts_give_the_same_numbers_and_gradients(policy, temperature: float, checkpointing: bool) -> None:
    sequences = grouped_batch().sequences
    sequences.insert(4, ([5, 6, 7], [1, 2]))  # a group need not lie side by side
    found = []
    for shared in (False, True):
        model = copy.deepcopy(policy.model)
        model.gradient_checkpointing = checkpointing
        logprobs, entropy = response_logprobs(model, sequences, temperature, share_prompts=shared)
        torch.autograd.backward((logprobs * torch.arange(len(logprobs)) + entropy).sum())
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((logprobs.detach(), entropy.detach(), gradient))
    (ours, our_entropy, our_gradient), (theirs, their_entropy, their_gradient) = found
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    torch.testing.assert_close(our_entropy, their_entropy, atol=1e-5, rtol=0)
    assert float((our_gradient - their_gradient).norm()) < 1e-5 * float(their_gradient.norm())


@pytest.mark.parametrize("budget", [1000, 25, 14])
def test_an_update_is_the_same(policy, make_config, budget: int) -> None:
    found = []
    for shared in (False, True):
        trained = copy.deepcopy(policy)
        config = make_config(
            data__train_batch_size=4,
            actor__ppo_mini_batch_size=2,
            actor__ppo_max_token_len_per_gpu=budget,
            actor__use_prefix_grouper=shared,
            actor__use_kl_loss=True,
        )
        optimizer = make_optimizer(trained, config.actor.optim)
        result = policy_update(trained, optimizer, grouped_batch(), config, 1, reference=policy)
        found.append((result.metrics, compute_logprobs(trained, grouped_batch().sequences, config)))
    (plain, before), (grouped, after) = found
    assert grouped == pytest.approx(plain, rel=1e-3, abs=1e-5)
    torch.testing.assert_close(torch.cat(after), torch.cat(before), atol=1e-3, rtol=0)


def tokens(segments: list[tuple[int, int]]) -> int:
    return sum(length for _, length in segments)


def test_what_is_computed_is_counted(make_config) -> None:
    """A prompt once for each micro-batch that it is in: groups stay together, and a budget may split one."""
    batch = grouped_batch()
    prompts, responses = sum(map(len, PROMPTS)), sum(len(response) for _, response in batch.sequences)
    all_prompts = sum(len(prompt) * size for prompt, size in zip(PROMPTS, SIZES, strict=True))
    plain = make_config()
    assert tokens(trained_segments(batch, plain)) == tokens(scored_segments(batch.sequences, plain))
    assert tokens(trained_segments(batch, plain)) == all_prompts + responses
    grouped = make_config(actor__use_prefix_grouper=True)
    assert tokens(trained_segments(batch, grouped)) == prompts + responses
    split = make_config(actor__use_prefix_grouper=True, actor__ppo_max_token_len_per_gpu=1)
    assert tokens(trained_segments(batch, split)) == all_prompts + responses
    # However it is split, each token costs what its context makes it cost.
    whole = pass_flops(trained_segments(batch, plain), lambda context: 3.0 * context)
    assert pass_flops(trained_segments(batch, split), lambda context: 3.0 * context) == pytest.approx(whole)


def test_a_run_pays_less_and_learns_the_same(make_config) -> None:
    costs, accuracies = [], []
    for shared in (False, True):
        steps = []
        train(make_config(actor__use_prefix_grouper=shared), lambda step, steps=steps: steps.append(step) is None)
        costs.append(steps[-1].cost)
        accuracies.append([step.metrics.get("reward/acc_mean") for step in steps])
    assert costs[1].flops < 0.95 * costs[0].flops
    assert costs[1].tokens == costs[0].tokens
    assert accuracies[0] == accuracies[1]
