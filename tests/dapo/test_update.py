import copy
from functools import partial

import pytest
import torch
from dapo.accounting import pass_flops, update_flops
from dapo.batch import TrainBatch
from dapo.config import Config
from dapo.config_actor import ActorConfig, OptimConfig
from dapo.draws import Sampling
from dapo.errors import NonFinite
from dapo.model import Policy, flops_per_token, response_logprobs
from dapo.packing import micro_batches, mini_batches, training_micro_batches
from dapo.run import Run
from dapo.train import update_policy
from dapo.update import compute_logprobs, learning_rate, make_optimizer, policy_update
from generation import respond
from hypothesis import given
from hypothesis import strategies as st


def make_batch(lengths: list[int], group_sizes: list[int] | None = None, seed: int = 0) -> TrainBatch:
    """Random prompts and responses of these lengths, with advantages of both signs."""
    draw = torch.Generator().manual_seed(seed)

    def ids(size: int) -> list[int]:
        return torch.randint(2, 200, (size,), generator=draw).tolist()

    return TrainBatch(
        sequences=[(ids(3 + index % 3), ids(length)) for index, length in enumerate(lengths)],
        advantages=[(-1.0) ** index * (1 + index / 4) for index in range(len(lengths))],
        masks=[[True] * length for length in lengths],
        rollout_logprobs=[[-5.0] * length for length in lengths],
        group_sizes=group_sizes or [len(lengths)],
    )


def gradients(policy: Policy, batch: TrainBatch, config: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """The gradient of one update of a copy of `policy`, and the update's metrics."""
    trained = copy.deepcopy(policy)
    trained.model.gradient_checkpointing = config.model.enable_gradient_checkpointing
    optimizer = make_optimizer(trained, config.actor.optim)
    result = policy_update(trained, optimizer, batch, config, 1, reference=moved(policy))
    found = [p.grad.flatten() for p in trained.model.parameters() if p.grad is not None]
    return torch.cat(found), result.metrics


def moved(policy: Policy) -> Policy:
    """A policy near this one."""
    other = copy.deepcopy(policy)
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.02)
    return other


def assert_same_gradient(one: torch.Tensor, other: torch.Tensor) -> None:
    """Equal but for float32's rounding, which differs with the order of summation."""
    assert float(other.norm()) > 1e-3
    assert float((one - other).norm()) < 1e-5 * float(other.norm())


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 50))
def test_micro_batches_hold_each_sequence_once_and_keep_to_the_budget(lengths: list[int], budget: int) -> None:
    packed = micro_batches(lengths, budget)
    assert sorted(index for micro in packed for index in micro) == list(range(len(lengths)))
    assert all(len(micro) == 1 or sum(lengths[index] for index in micro) <= budget for micro in packed)


def test_eight_rows_of_seven_under_a_budget_of_eight_are_eight_micro_batches() -> None:
    """ceil(56 / 8) = 7 is only a lower bound, which a public trainer took for the number."""
    assert len(micro_batches([7] * 8, 8)) == 8


MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
EVERYTHING = {"actor__entropy_coeff": 0.01, "actor__use_kl_loss": True, "actor__kl_loss_coef": 0.1}


@pytest.mark.parametrize("loss_mode", ["vanilla", "gspo", "cispo", "geo_mean"])
@pytest.mark.parametrize("mode", MODES)
def test_the_gradient_does_not_depend_on_the_split(policy, make_config, mode: str, loss_mode: str) -> None:
    """With every term on: policy loss, entropy, KL, importance weights, and a step away from the old policy."""
    batch = make_batch([4, 1, 7, 2])
    batch.masks[2] = [False] * 7
    batch.masks[0][1] = False
    base = {
        "actor__grad_clip": 1e6,
        "actor__loss_agg_mode": mode,
        "actor__policy_loss": {"loss_mode": loss_mode},
        "algorithm__rollout_correction": {"rollout_is": "sequence", "rollout_is_threshold": 0.9},
        "actor__ppo_epochs": 2,
        **EVERYTHING,
    }
    by_budget = [{"actor__ppo_max_token_len_per_gpu": budget} for budget in (14, 1)]
    by_number = [{"actor__use_dynamic_bsz": False, "actor__ppo_micro_batch_size_per_gpu": 3}]
    assert [len(micro_batches([7, 5, 12, 5], budget)) for budget in (1000, 14, 1)] == [1, 3, 4]
    whole, metrics = gradients(policy, batch, make_config(**base))
    assert whole.abs().max() > 1e-4
    for changes in (*by_budget, *by_number):
        split, others = gradients(policy, batch, make_config(**base, **changes))
        assert_same_gradient(split, whole)
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6)


@given(st.lists(st.integers(1, 40), max_size=12), st.integers(1, 5))
def test_micro_batches_by_number_hold_each_sequence_once(lengths: list[int], size: int) -> None:
    config = ActorConfig(use_dynamic_bsz=False, ppo_micro_batch_size_per_gpu=size)
    packed = training_micro_batches(lengths, config)
    assert [index for micro in packed for index in micro] == list(range(len(lengths)))
    assert all(len(micro) == size for micro in packed[:-1])
    with pytest.raises(ValueError, match="needs actor.ppo_micro_batch_size_per_gpu"):
        training_micro_batches(lengths, ActorConfig(use_dynamic_bsz=False))


def test_token_mean_is_over_the_mini_batch(policy, make_config) -> None:
    """Lengths 4 and 1, one sequence a micro-batch: the gradient of sum / 5, not of a mean of means."""
    batch = make_batch([4, 1])
    found, metrics = gradients(policy, batch, make_config(actor__grad_clip=1e6, actor__ppo_max_token_len_per_gpu=1))
    model = copy.deepcopy(policy.model)
    logprobs, _ = response_logprobs(model, batch.sequences, 1.0)
    advantages = torch.tensor([batch.advantages[0]] * 4 + [batch.advantages[1]])
    torch.autograd.backward(-(advantages * logprobs).sum() / 5)
    expected = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert_same_gradient(found, expected)
    assert metrics["actor/pg_loss"] == pytest.approx(-float(advantages.sum()) / 5)


@pytest.mark.parametrize(
    ("prompts", "sizes"),
    [(512, [16]), (2, [8, 8]), (1, [4, 4, 4, 4]), (3, [12, 4])],
)
def test_mini_batches_count_prompts(prompts: int, sizes: list[int]) -> None:
    """Four prompts of four responses; verl's unit is prompts, the paper's 512 samples are 32 of them."""
    lengths = list(range(1, 17))
    config = Config.model_validate({"actor": {"ppo_mini_batch_size": prompts}})
    minis = list(mini_batches(make_batch(lengths, [4] * 4), config))
    assert [len(mini.indices) for mini in minis] == sizes
    assert [index for mini in minis for index in mini.indices] == list(range(16))
    assert [mini.tokens for mini in minis] == [sum(lengths[index] for index in mini.indices) for mini in minis]
    assert [len(w) for mini in minis for w in mini.weights] == lengths
    assert all(float(sum(w.sum() for w in mini.weights)) == pytest.approx(1.0) for mini in minis)


def test_one_on_policy_step_needs_no_forward_pass_of_its_own(policy, make_config) -> None:
    optimizer = make_optimizer(policy, OptimConfig())
    result = policy_update(policy, optimizer, make_batch([3] * 4, [2, 2]), make_config(), 1)
    assert (result.optimizer_steps, result.forward_passes) == (1, 0)
    assert result.metrics["actor/ppo_kl"] == 0.0


def test_several_steps_compare_with_the_policy_before_the_first(policy, make_config) -> None:
    config = make_config(
        actor__ppo_mini_batch_size=1, actor__ppo_epochs=2, actor__optim={"lr": 1e-2, "lr_warmup_steps": 0}
    )
    result = policy_update(policy, make_optimizer(policy, OptimConfig()), make_batch([5] * 4, [2, 2]), config, 1)
    assert (result.optimizer_steps, result.forward_passes) == (4, 1)
    assert result.metrics["actor/ppo_kl"] != 0.0
    assert result.metrics["actor/pg_clipfrac"] > 0.0


@pytest.mark.parametrize("mode", MODES)
def test_a_fully_masked_batch_takes_no_step(policy, make_config, mode: str) -> None:
    batch = make_batch([3, 4])
    batch.masks = [[False] * 3, [False] * 4]
    before = copy.deepcopy(policy.model.state_dict())
    config = make_config(actor__loss_agg_mode=mode, actor__optim={"weight_decay": 0.5}, actor__use_kl_loss=True)
    optimizer = make_optimizer(policy, config.actor.optim)
    result = policy_update(policy, optimizer, batch, config, 1, reference=copy.deepcopy(policy))
    assert (result.optimizer_steps, result.forward_passes, result.metrics["actor/pg_loss"]) == (0, 0, 0.0)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_a_mini_batch_that_is_masked_takes_no_step_and_costs_its_log_probs_alone(policy, make_config) -> None:
    batch = make_batch([3, 4, 5, 6], [2, 2])
    batch.masks[:2] = [[False] * 3, [False] * 4]
    run = Run.start(make_config(actor__ppo_mini_batch_size=1, actor__ppo_epochs=2))
    metrics = update_policy(run, batch)
    assert metrics["actor/optimizer_steps"] == 2.0
    flops = partial(flops_per_token, policy.config)
    segments = [(0, len(prompt) + len(response)) for prompt, response in batch.sequences]
    assert run.meter.cost.flops == pytest.approx(pass_flops(segments, flops) + update_flops(segments[2:], 2, flops))


def test_masked_responses_have_no_influence(policy, make_config) -> None:
    both = make_batch([3, 4])
    both.masks[1] = [False] * 4
    alone = make_batch([3])
    config = make_config(actor__grad_clip=1e6)
    assert_same_gradient(gradients(policy, both, config)[0], gradients(policy, alone, config)[0])


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_stop_the_run_before_the_step(policy, make_config, broken: float) -> None:
    batch = make_batch([3, 4])
    batch.advantages[0] = broken
    before = copy.deepcopy(policy.model.state_dict())
    with pytest.raises(NonFinite, match="actor/pg_loss"):
        policy_update(policy, make_optimizer(policy, OptimConfig()), batch, make_config(), 1)
    assert all(torch.equal(before[name], tensor) for name, tensor in policy.model.state_dict().items())


def test_kl_in_the_loss_draws_towards_the_reference(policy, make_config) -> None:
    """Without advantages nothing else is left in the gradient, and its size follows the coefficient."""
    batch = make_batch([4, 3])
    batch.advantages = [0.0, 0.0]
    base = {"actor__grad_clip": 1e6, "actor__kl_loss_type": "k2"}
    still, metrics = gradients(policy, batch, make_config(**base))
    assert float(still.norm()) == 0.0
    assert "actor/kl_loss" not in metrics
    one, metrics = gradients(policy, batch, make_config(**base, actor__use_kl_loss=True, actor__kl_loss_coef=0.1))
    two, _ = gradients(policy, batch, make_config(**base, actor__use_kl_loss=True, actor__kl_loss_coef=0.2))
    assert metrics["actor/kl_loss"] > 0.0
    assert_same_gradient(two, 2 * one)
    model = copy.deepcopy(policy.model)
    logprobs, _ = response_logprobs(model, batch.sequences, 1.0)
    frozen, _ = response_logprobs(moved(policy).model, batch.sequences, 1.0)
    torch.autograd.backward(0.1 * (0.5 * (logprobs - frozen.detach()).square()).mean())
    assert_same_gradient(one, torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))


def test_kl_in_the_loss_needs_the_reference_and_counts_its_pass(policy, make_config) -> None:
    config = make_config(actor__use_kl_loss=True)
    optimizer = make_optimizer(policy, config.actor.optim)
    with pytest.raises(ValueError, match="needs the reference"):
        policy_update(policy, optimizer, make_batch([3]), config, 1)
    assert policy_update(policy, optimizer, make_batch([3]), config, 1, reference=policy).forward_passes == 1


@pytest.mark.parametrize(
    ("level", "threshold", "weight"), [("token", 2.0, 2.0), ("token", 1e9, None), (None, 2.0, 1.0)]
)
def test_rollout_correction_weighs_the_loss(policy, make_config, level, threshold: float, weight: float | None) -> None:
    """Log-probs of -5 at generation, where the trainer's are elsewhere: weights exp(old + 5), up to the threshold."""
    batch = make_batch([4, 3])
    batch.rollout_logprobs = [[-50.0] * 4, [-50.0] * 3]
    plain = make_config(actor__grad_clip=1e6)
    correction = {"rollout_is": level, "rollout_is_threshold": threshold}
    changed = make_config(actor__grad_clip=1e6, algorithm__rollout_correction=correction)
    base, _ = gradients(policy, batch, plain)
    found, metrics = gradients(policy, batch, changed)
    if weight is not None:
        assert_same_gradient(found, weight * base)
    if level is not None:
        assert metrics["rollout/is_weight_mean"] > 1.0
        assert metrics["rollout/is_truncated"] == float(weight is not None)


def test_gradient_checkpointing_gives_the_same_gradient(policy, make_config) -> None:
    batch, calls = make_batch([4, 1, 7, 2]), []
    config = {"actor__grad_clip": 1e6, "actor__entropy_coeff": 0.01}
    whole, metrics = gradients(policy, batch, make_config(**config))
    layer = policy.model.model.layers[0]
    handle = layer.register_forward_pre_hook(lambda *_: calls.append(1))
    again, others = gradients(policy, batch, make_config(**config, model__enable_gradient_checkpointing=True))
    handle.remove()
    assert torch.equal(again, whole)
    assert others == metrics
    assert len(calls) == 2  # once forward, once again for the backward pass


def saved_bytes(policy: Policy, batch: TrainBatch) -> int:
    """What the forward pass keeps for the backward pass, parameters left out."""
    parameters = {parameter.data_ptr() for parameter in policy.model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logprobs, _ = response_logprobs(policy.model, batch.sequences, 1.0)
    assert logprobs.requires_grad
    return sum(kept.values())


def test_gradient_checkpointing_keeps_less(policy) -> None:
    batch = make_batch([40] * 4)
    whole = saved_bytes(policy, batch)
    policy.model.gradient_checkpointing = True
    assert saved_bytes(policy, batch) < 0.6 * whole


def test_warm_up_is_linear_and_then_constant() -> None:
    rates = [learning_rate(OptimConfig(lr=1.0, lr_warmup_steps=4), step) for step in range(1, 7)]
    assert rates == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert learning_rate(OptimConfig(lr=1.0, lr_warmup_steps=0), 1) == 1.0


def test_the_gradient_norm_is_clipped(policy, make_config) -> None:
    found, metrics = gradients(policy, make_batch([3, 4]), make_config(actor__grad_clip=1e-3))
    assert metrics["actor/grad_norm"] > 1e-3
    assert float(found.norm()) == pytest.approx(1e-3, rel=1e-2)


def test_trainer_and_rollout_agree_on_log_probs(policy, make_config) -> None:
    config = make_config(rollout__temperature=0.7)
    prompts = [[5, 6, 7], [9, 10]]
    groups = respond(policy, prompts, 3, sampling=Sampling(0.7, 1.0, -1), room=6, max_num_seqs=4)
    batch = TrainBatch(group_sizes=[3, 3])
    for prompt, responses in zip(prompts, groups, strict=True):
        for response in responses:
            batch.sequences.append((prompt, response.token_ids))
            batch.masks.append([True] * len(response.token_ids))
            batch.rollout_logprobs.append(response.rollout_logprobs)
            batch.advantages.append(1.0)
    for found, expected in zip(compute_logprobs(policy, batch.sequences, config), batch.rollout_logprobs, strict=True):
        assert found.tolist() == pytest.approx(expected, abs=1e-5)
    _, metrics = gradients(policy, batch, config)
    assert metrics["rollout/logprob_diff_max"] < 1e-5
    assert metrics["rollout/logprob_diff_mean"] <= metrics["rollout/logprob_diff_max"]
