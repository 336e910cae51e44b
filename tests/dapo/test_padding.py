"""`model.use_remove_padding`: packed and padded computation give the same numbers, those of a left-padded batch.

Public trainers got this wrong with padding kept: the attention mask was made from the loss mask
(verl-project/verl#6278), or the log-probabilities differed beyond rounding (verl-project/verl#1381).
"""

from collections.abc import Sequence

import pytest
import torch
from dapo.model import Decoder, Policy, response_logprobs, save_policy
from dapo.run import Run
from dapo.trainer import StepMetrics, train
from torch.nn.utils.rnn import pad_sequence
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

PAIRS = [([5, 6, 7], [8, 9]), ([11], [12, 13, 14, 15, 16, 17]), ([18] * 9, [19]), ([20, 21], [22])]


def scored(model: Decoder, pairs: Sequence[tuple[list[int], list[int]]], temperature: float) -> list[torch.Tensor]:
    """Log-probabilities, entropies and gradients."""
    model.zero_grad()
    logprobs, entropy = response_logprobs(model, pairs, temperature)
    torch.autograd.backward(logprobs.sum() + 0.1 * entropy.sum())
    return [logprobs.detach(), entropy.detach(), *(weight.grad.clone() for weight in model.parameters())]


def assert_close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
    """Within 1e-6 of the largest number of each tensor."""
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= 1e-6 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_padding_changes_neither_log_probs_nor_gradients(policy: Policy, temperature: float) -> None:
    packed = scored(policy.model, PAIRS, temperature)
    policy.model.remove_padding = False
    assert_close(scored(policy.model, PAIRS, temperature), packed)


@torch.inference_mode()
def left_padded(policy: Policy, folder: str) -> torch.Tensor:
    """Log-probabilities by transformers, of a batch as verl lays it out: padded left of prompts, right of responses."""
    prompts = pad_sequence([torch.tensor(prompt[::-1]) for prompt, _ in PAIRS], True, -1).flip(1)
    responses = pad_sequence([torch.tensor(response) for _, response in PAIRS], True, -1)
    ids = torch.cat((prompts, responses), 1)
    mask = (ids >= 0).long()
    theirs = AutoModelForCausalLM.from_pretrained(folder)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = theirs(ids.clamp(min=0), attention_mask=mask, position_ids=positions).logits
    table = logits[:, prompts.shape[1] - 1 : -1].log_softmax(-1)
    found = table.gather(2, responses.clamp(min=0).unsqueeze(2)).squeeze(2)
    return found[responses >= 0]


@pytest.mark.parametrize("remove_padding", [True, False])
def test_log_probs_are_those_of_a_left_padded_batch(policy: Policy, tmp_path, remove_padding: bool) -> None:
    save_policy(policy, tmp_path)
    policy.model.remove_padding = remove_padding
    found = response_logprobs(policy.model, PAIRS, 1.0)[0].detach()
    torch.testing.assert_close(found, left_padded(policy, str(tmp_path)), atol=1e-5, rtol=0)


def linear_flops(policy: Policy) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        response_logprobs(policy.model, PAIRS, 1.0)
    return sum(count for name, count in counter.get_flop_counts()["Global"].items() if "mm" in str(name))


def test_padding_is_really_computed(policy: Policy) -> None:
    packed = linear_flops(policy)
    policy.model.remove_padding = False
    assert linear_flops(policy) > 1.3 * packed


def test_a_run_learns_the_same_either_way(make_config) -> None:
    def run(use_remove_padding: bool) -> StepMetrics:
        steps: list[StepMetrics] = []
        config = make_config(
            model__use_remove_padding=use_remove_padding, actor__use_kl_loss=True, actor__ppo_mini_batch_size=2
        )
        train(config, lambda step: steps.append(step) or True)
        return steps[-1]

    started = Run.start(make_config(model__use_remove_padding=False, actor__use_kl_loss=True))
    assert started.reference is not None
    assert (started.policy.model.remove_padding, started.reference.model.remove_padding) == (False, False)
    packed, padded = run(True), run(False)
    names = ("actor/grad_norm", "actor/pg_loss", "actor/kl_loss", "actor/entropy", "rollout/logprob_diff_mean")
    for name in names:
        assert padded.metrics[name] == pytest.approx(packed.metrics[name], rel=1e-3, abs=1e-6)
    assert padded.cost.flops == packed.cost.flops
    assert padded.evaluation == packed.evaluation
