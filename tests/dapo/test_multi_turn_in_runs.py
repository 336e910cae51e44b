"""Whole runs in which the policy really calls tools: training, resuming, augmentation, evaluation, accounts."""

import json
from pathlib import Path

import pytest
import torch
from dapo.accounting import Meter
from dapo.batch import StepMetrics
from dapo.config import Config
from dapo.evaluate import evaluate
from dapo.model import save_policy
from dapo.run import Run
from dapo.tool_calls import short_instructions, signatures_of
from sweep_platform.spec.metrics import exists
from tool_policy import NUMBERS, careless_policy, tool_policy
from training import run, weights

SETTINGS = {"enable": True, "max_turns": 3}


@pytest.fixture
def make_tool_config(make_config, tmp_path: Path):
    """Six problems `n+0` to train on, two to evaluate on; the policy calls the calculator, and is often wrong."""
    save_policy(tool_policy(), tmp_path / "caller")
    rows = [f'{{"problem": "{number}+0", "answer": {number}}}\n' for number in NUMBERS]
    (tmp_path / "sums.jsonl").write_text("".join(rows[:6]))
    (tmp_path / "others.jsonl").write_text("".join(rows[6:]))

    def make(**changes: object) -> Config:
        base: dict[str, object] = {
            "model__path": str(tmp_path / "caller"),
            "data__train": str(tmp_path / "sums.jsonl"),
            "data__val": str(tmp_path / "others.jsonl"),
            "rollout__val_kwargs": {"n": 6},
            "data__max_response_length": 80,
            "data__max_prompt_length": 80,
            "rollout__multi_turn": SETTINGS,
            "reward": {"grader": "integer"},
            "actor__optim": {"lr": 5e-4},
            "trainer__total_training_steps": 2,
        }
        return make_config(**base | changes)

    return make


def part(step: StepMetrics, *prefixes: str) -> dict[str, float]:
    """Metrics but for measured times and memory."""
    return {
        name: value
        for name, value in step.metrics.items()
        if name.startswith(prefixes or ("filter/", "tokens", "actor/", "multi_turn/", "reward/", "response", "val/"))
    }


def test_a_run_trains_on_responses_with_tools(make_tool_config) -> None:
    told = run(make_tool_config(trainer__total_training_steps=3))
    assert [step.step for step in told] == [0, 1, 2, 3]
    for step in told[1:]:
        found = step.metrics
        assert found["multi_turn/offered"] == 1.0
        assert found["multi_turn/call_share"] > 0.5
        assert 1.5 < found["multi_turn/turns_mean"] < 3.0
        assert 0.0 < found["multi_turn/tool_token_share"] < 0.5
        assert found["actor/optimizer_steps"] == 1.0
        assert found["rollout/logprob_diff_max"] < 1e-2, "what was recorded is what the trainer finds, behind tools too"
        assert 0.0 < found["timing_s/tools"] < found["timing_s/gen"] + found.get("timing_s/testing", 0.0)
        responses = found["filter/groups_generated"] * 4
        generated = sum(found[f"tokens/{place}"] for place in ("kept", "filtered", "surplus", "pilot"))
        length = found["response_length/mean"] * responses
        assert generated < length, "what tools wrote was not generated"
        share = found["multi_turn/tool_token_share"]
        assert generated == pytest.approx(length * (1 - share))
    assert sorted(name for step in told for name in step.metrics if not exists(name)) == []
    evaluated = told[-1].evaluation
    assert sum("<tool_response>" in sample.response for sample in evaluated) > len(evaluated) / 2
    assert any(sample.correct for sample in evaluated)


def test_reinforcement_teaches_to_say_what_the_tool_said(make_tool_config, tmp_path: Path) -> None:
    """A policy that calls and then answers something else; it goes on calling, and learns to use the answer."""
    save_policy(careless_policy(), tmp_path / "careless")
    config = make_tool_config(
        model__path=str(tmp_path / "careless"),
        rollout__n=8,
        actor__optim={"lr": 5e-4},
        rollout__val_kwargs={"n": 16, "top_p": 1.0},
        trainer__total_training_steps=10,
    )
    told = run(config)
    assert told[0].metrics["val/accuracy"] < 0.1, "of numbers that are never trained on"
    assert told[-1].metrics["val/accuracy"] > 0.2
    assert told[-1].metrics["multi_turn/call_share"] > 0.6


def test_all_sampled_tokens_are_accounted_for(make_tool_config, tmp_path: Path) -> None:
    carry = {"surplus": "carry", "surplus_max_staleness": 2}
    config = make_tool_config(
        algorithm__filter_groups=carry,
        data__train_batch_size=2,
        data__gen_batch_size=5,
        trainer__default_local_dir=str(tmp_path / "run"),
        trainer__total_training_steps=3,
    )
    told = run(config, stop_at=1) + run(config)[1:]
    for step in told:
        parts = {key.split("/")[1]: value for key, value in step.metrics.items() if key.startswith("tokens_total/")}
        assert parts.pop("evaluation") == step.cost.evaluation_tokens
        assert sum(parts.values()) == step.cost.tokens
    assert sum(step.metrics.get("filter/groups_carried", 0.0) for step in told) > 0


@pytest.mark.parametrize("prob", [1.0, 0.5])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(make_tool_config, tmp_path: Path, prob: float) -> None:
    changes = {
        "rollout__multi_turn": SETTINGS | {"tool_usage_prob": prob},
        "algorithm__filter_groups": {"surplus": "carry", "surplus_max_staleness": 2},
        "data__train_batch_size": 2,
        "data__gen_batch_size": 5,
        "trainer__total_training_steps": 3,
    }
    whole = run(make_tool_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    parted = make_tool_config(**changes, trainer__default_local_dir=str(tmp_path / "parted"))
    run(parted, stop_at=1)
    again = run(parted)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parted")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (again[-1].cost.tokens, again[-1].cost.flops) == (whole[-1].cost.tokens, whole[-1].cost.flops)
    assert part(again[-1]) == part(whole[-1])


def test_tools_are_offered_to_a_share_of_the_groups_and_at_every_evaluation(make_tool_config) -> None:
    settings = SETTINGS | {"tool_usage_prob": 0.3}
    fresh = Run.start(make_tool_config(rollout__multi_turn=settings))
    offer = short_instructions(signatures_of(fresh.config.rollout.multi_turn))
    offers, drawn = [], []
    for number in range(40):
        fresh.state.rounds = number
        groups = fresh.generate(range(6), 2, "rollout", number) if number < 2 else []
        offers.append([fresh._offers_tools(index) for index in range(6)])
        for index, group in enumerate(groups):
            drawn.append(offers[-1][index])
            assert (offer in fresh.policy.tokenizer.decode(group.prompt_ids)) == drawn[-1], "one prompt for all of it"
            assert [response.turns is not None for response in group.responses] == [drawn[-1]] * 2
    assert set(drawn) == {True, False}
    assert 0.2 < sum(map(sum, offers)) / 240 < 0.4
    assert len({tuple(row) for row in offers}) > 10, "drawn anew each round"
    told = run(make_tool_config(rollout__multi_turn=settings, algorithm__filter_groups={"enable": False}))
    assert 0.0 < told[1].metrics["multi_turn/offered"] < 1.0
    assert sum("<tool_call>" in sample.response for sample in told[0].evaluation) > len(told[0].evaluation) / 2


def test_any_evaluation_of_the_config_offers_tools(make_tool_config) -> None:
    """Also the one before a supervised warm start, which has no run."""
    fresh = Run.start(make_tool_config())
    samples = evaluate(fresh.policy, fresh.val_prompts, fresh.scorer, fresh.config, Meter())
    assert sum("<tool_response>" in sample.response for sample in samples) > len(samples) / 2


def test_the_committed_part_of_a_group_has_the_pilots_prompt(make_tool_config) -> None:
    settings = SETTINGS | {"tool_usage_prob": 0.5}
    told = run(make_tool_config(rollout__multi_turn=settings, rollout__pilot_n=2))
    assert told[-1].final
    fresh = Run.start(make_tool_config(rollout__multi_turn=settings))
    fresh.state.rounds = 3
    pilots = fresh.generate(range(6), 2, "rollout", 3)
    rest = fresh.generate(range(2, 6), 2, "commit", 3)
    assert [group.prompt_ids for group in pilots[2:]] == [group.prompt_ids for group in rest]


def test_programs_run_in_a_run(make_tool_config, tmp_path: Path) -> None:
    """The policy writes programs such as `3+0`, and each runs in a sandbox."""
    save_policy(tool_policy("python"), tmp_path / "programmer")
    settings = SETTINGS | {"tools": ["python"], "num_workers": 2, "max_tool_response_length": 32}
    told = run(make_tool_config(model__path=str(tmp_path / "programmer"), rollout__multi_turn=settings))
    assert told[-1].metrics["multi_turn/call_share"] > 0.5
    assert told[-1].metrics["multi_turn/failure_share"] < 0.5
    right = [sample for sample in told[-1].evaluation if sample.correct]
    assert any(f"<tool_response>{sample.ground_truth}</tool_response>" in sample.response for sample in right)


def test_without_tools_nothing_is_different(make_tool_config, tmp_path: Path) -> None:
    """The section's other fields have no say, and no metric of it is reported."""
    off = run(make_tool_config(rollout__multi_turn={}, algorithm__filter_groups={"enable": False}))
    assert not [name for step in off for name in step.metrics if "multi_turn" in name or "tools" in name]
    assert all("<tool_response>" not in sample.response for sample in off[-1].evaluation)


def test_dialogues_are_trained_on(make_tool_config, tmp_path: Path) -> None:
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Add."},
                {"role": "user", "content": f"{number}+0"},
                {"role": "assistant", "content": f"Answer: {number}"},
                {"role": "user", "content": f"{number}+1"},
            ],
            "answer": number + 1,
        }
        for number in NUMBERS
    ]
    for name, part in (("talk", rows[2:]), ("other", rows[:2])):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    file = {"data__train": str(tmp_path / "talk.jsonl"), "data__val": str(tmp_path / "other.jsonl")}
    config = make_tool_config(**file, data__max_prompt_length=160, algorithm__filter_groups={"enable": False})
    told = run(config)
    assert told[-1].final
    assert told[-1].evaluation[0].prompt == "Add.\n\n0+0\n\nAnswer: 0\n\n0+1"
    prompt = Run.start(config).val_prompts.prompt(0, tools=True)
    text = tool_policy().tokenizer.decode(prompt)
    assert text.endswith("}</tool_call>\nSystem: Add.\nUser: 0+0\nAssistant: Answer: 0\nUser: 0+1\nAssistant:")
