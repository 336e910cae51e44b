"""Whole runs of a real, very small decoder."""

import json
import logging
import math
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from dapo.batch import StepMetrics
from dapo.checkpoint import Checkpoints
from dapo.config import Config
from dapo.errors import CheckpointError, DapoError, SamplingExhausted
from dapo.rounds import scored_round
from dapo.run import Run
from dapo.sampling import RoundRequest
from dapo.train import train
from training import run, weights

SHARED = Path(__file__).parents[3] / "shared" / "data"
ALWAYS = {
    "reward/acc_mean",
    "reward/score_mean",
    "filter/yield",
    "filter/rounds",
    "filter/all_right",
    "filter/all_wrong",
    "actor/pg_loss",
    "actor/entropy",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/ppo_kl",
    "actor/grad_norm",
    "actor/lr",
    "response_length/mean",
    "response_length/max",
    "response_length/clip_ratio",
    "tokens/kept",
    "tokens/filtered",
    "tokens/surplus",
    "perf/throughput",
    "perf/peak_memory_gb",
    "perf/idle_share",
    "perf/idle/gen",
    "perf/idle/reward",
    "perf/idle/update_actor",
    "perf/tokens_per_s/gen",
    "perf/tokens_per_s/update_actor",
    "perf/tokens_per_s_per_device/gen",
    "perf/mfu/gen",
    "perf/mfu/actor",
    "timing_per_token_ms/gen",
    "timing_s/gen",
    "timing_s/other",
    "timing_s/step",
    "timing_s/reward",
    "timing_s/update_actor",
    "cost/flops",
    "cost/tokens",
    "cost/device_seconds",
}
EVALUATED = {
    *("val/accuracy", "val/accuracy_se", "val/arithmetic-aime/accuracy", "timing_s/testing"),
    *("perf/tokens_per_s/testing", "perf/mfu/testing", "perf/idle/testing"),
}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_every_step_is_reported_and_the_last_is_evaluated(make_config) -> None:
    told = run(make_config())
    assert [step.step for step in told] == [0, 1, 2, 3]
    assert [step.final for step in told] == [False, False, False, True]
    assert {step.total_steps for step in told} == {3}
    assert [len(step.evaluation) for step in told] == [12, 0, 0, 12]
    for step in told[1:]:
        assert set(step.metrics) >= ALWAYS
    assert set(told[0].metrics) >= EVALUATED
    assert set(told[3].metrics) >= EVALUATED
    assert all(math.isfinite(value) for step in told for value in step.metrics.values())


@pytest.mark.parametrize(
    ("changes", "evaluated"),
    [
        ({"test_freq": 2}, [0, 2, 3]),
        ({"val_before_train": False, "test_freq": 1}, [1, 2, 3]),
        ({"test_at": [0.3, 1 / 3]}, [0, 1, 3]),
    ],
)
def test_evaluation_comes_when_it_is_due(make_config, changes: dict[str, object], evaluated: list[int]) -> None:
    told = run(make_config(**{f"trainer__{key}": value for key, value in changes.items()}))
    assert [step.step for step in told if step.evaluation] == evaluated


def test_it_learns(make_config, tmp_path: Path) -> None:
    rows = [{"problem": f"{number}+2", "answer": number + 2} for number in range(10)]
    (tmp_path / "val.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    longer = {"trainer__total_training_steps": 12, "data__train_batch_size": 8, "rollout__n": 8}
    told = run(make_config(**longer, data__val=str(tmp_path / "val.jsonl")))
    assert told[1].metrics["reward/acc_mean"] < 0.6
    assert told[-1].metrics["reward/acc_mean"] > told[1].metrics["reward/acc_mean"] + 0.3
    assert told[-1].metrics["val/accuracy"] > told[0].metrics["val/accuracy"] + 0.1


@pytest.mark.parametrize(("gen_batch_size", "rounds"), [(3, 2), (1, 4)])
def test_costs_are_cumulative_and_account_for_every_token(make_config, gen_batch_size: int, rounds: int) -> None:
    """Of all rounds of an update, not of the last one alone."""
    told = run(make_config(data__gen_batch_size=gen_batch_size))
    assert all(step.metrics["filter/rounds"] >= rounds for step in told[1:])
    for before, after in zip(told, told[1:], strict=False):
        kinds = sum(after.metrics[f"tokens/{kind}"] for kind in ("kept", "filtered", "surplus"))
        assert after.cost.tokens - before.cost.tokens == kinds
        assert after.cost.flops > before.cost.flops
        assert after.cost.device_seconds > before.cost.device_seconds
        assert after.metrics["cost/tokens"] == after.cost.tokens
        generated = after.metrics["filter/groups_generated"] * 4
        assert after.metrics["response_length/mean"] * generated == pytest.approx(kinds)
    assert told[-1].cost.evaluation_tokens == sum(s.response_length for step in told for s in step.evaluation)


@pytest.mark.parametrize("batch", [(6, 4), (2, 4)])
def test_generation_and_training_batches_may_differ(make_config, batch: tuple[int, int]) -> None:
    told = run(make_config(data__gen_batch_size=batch[0], data__train_batch_size=batch[1]))
    for step in told[1:]:
        assert step.metrics["filter/groups"] == batch[1]
        assert step.metrics["filter/groups_generated"] == batch[0] * step.metrics["filter/rounds"]


def test_filtering_moves_neither_the_plan_nor_the_learning_rate(make_config) -> None:
    """Steps count updates, not generation rounds; the learning rate is a function of the step."""
    told = run(
        make_config(
            data__gen_batch_size=2,
            trainer__total_training_steps=4,
            actor__optim={"lr": 1e-3, "lr_warmup_steps": 3},
        )
    )
    assert sum(step.metrics.get("filter/rounds", 0) for step in told) > 4
    assert [step.metrics["actor/lr"] for step in told[1:]] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3])


def test_evaluation_does_not_disturb_training(make_config, tmp_path: Path) -> None:
    run(make_config(trainer__default_local_dir=str(tmp_path / "a"), trainer__test_freq=1))
    run(make_config(trainer__default_local_dir=str(tmp_path / "b"), trainer__val_before_train=False))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))


def test_seeds_differ_and_repeat(make_config, tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(make_config(trainer__default_local_dir=str(tmp_path / name), trainer__seed=seed))
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_a_last_checkpoint_always_exists(make_config, tmp_path: Path) -> None:
    run(make_config(trainer__default_local_dir=str(tmp_path / "run"), trainer__save_freq=2))
    assert {path.name for path in (tmp_path / "run").glob("global*")} == {"global_step_2", "global_step_3"}


@pytest.mark.parametrize("stop_at", [0, 1, 3])
def test_a_stopped_run_goes_on_as_if_it_had_not_stopped(make_config, tmp_path: Path, stop_at: int) -> None:
    changes = {"trainer__total_training_steps": 4, "data__gen_batch_size": 3}
    whole = run(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    parted = make_config(**changes, trainer__default_local_dir=str(tmp_path / "parted"))
    first = run(parted, stop_at=stop_at)
    second = run(parted)
    assert [step.step for step in first] == list(range(stop_at + 1))
    assert [step.step for step in second] == list(range(stop_at, 5)), "the checkpoint's step is told again"
    assert second[0] == first[-1]
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parted"))
    assert second[-1].evaluation == whole[-1].evaluation
    assert (second[-1].cost.tokens, second[-1].cost.flops) == (whole[-1].cost.tokens, whole[-1].cost.flops)


def test_a_step_that_was_saved_and_never_told_is_told_first(make_config, tmp_path: Path) -> None:
    """The listener dies at step 2, after the checkpoint and before writing the step down."""
    config = make_config(trainer__default_local_dir=str(tmp_path / "run"), trainer__save_freq=2)

    def dies(step: StepMetrics) -> bool:
        if step.step == 2:
            raise ConnectionError
        return True

    with pytest.raises(ConnectionError):
        train(config, dies)
    assert [step.step for step in run(config)] == [2, 3]


def test_a_finished_run_tells_its_end_again_and_nothing_else(make_config, tmp_path: Path) -> None:
    config = make_config(trainer__default_local_dir=str(tmp_path / "run"))
    first = run(config)
    assert run(config) == first[-1:]
    assert run(config, stop_at=3) == first[-1:]


def test_a_finished_run_can_be_lengthened_and_an_unfinished_one_shortened(make_config, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    run(make_config(trainer__default_local_dir=folder))
    longer = run(make_config(trainer__default_local_dir=folder, trainer__total_training_steps=5), stop_at=4)
    assert [(step.step, step.total_steps, step.final) for step in longer] == [(3, 5, False), (4, 5, False)]
    shorter = run(make_config(trainer__default_local_dir=folder, trainer__total_training_steps=4))
    assert [(step.step, step.final, len(step.evaluation)) for step in shorter] == [(4, True, 12)]
    with pytest.raises(CheckpointError, match=r"total_training_steps: got 2 updates; need at least 4"):
        run(make_config(trainer__default_local_dir=folder, trainer__total_training_steps=2))


def test_seconds_of_lost_steps_are_kept(make_config, tmp_path: Path) -> None:
    config = make_config(trainer__default_local_dir=str(tmp_path / "run"))
    first = run(config, stop_at=1)
    Checkpoints(tmp_path / "run", 2).note_progress(2, replace(first[-1].cost, device_seconds=1e6, tokens=10**9))
    second = run(config)
    assert second[0] == first[-1]
    assert all(step.cost.device_seconds > 1e6 and step.cost.tokens < 10**9 for step in second[1:])


def test_rounds_draw_other_responses_to_the_same_prompt(make_config, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"problem": "1+1", "answer": 2}')
    fresh = Run.start(make_config(data__train=str(tmp_path / "one.jsonl")))
    first, second = (scored_round(fresh, RoundRequest(1, 1, None))[0] for _ in range(2))
    assert first.problem == second.problem
    assert first.responses != second.responses


def test_without_resume_a_run_starts_afresh(make_config, tmp_path: Path) -> None:
    config = make_config(trainer__default_local_dir=str(tmp_path / "run"), trainer__resume_mode="disable")
    assert [len(run(config)), len(run(config))] == [4, 4]
    again = make_config(trainer__default_local_dir=str(tmp_path / "run"))
    assert [step.step for step in run(again)] == [3], "what it left can be resumed"


@pytest.mark.parametrize("reward", ["wrong", "right"])
def test_exhausted_sampling_leaves_a_checkpoint_that_other_knobs_continue(
    make_config, tmp_path: Path, reward: str
) -> None:
    """All wrong at the start or all right at the end: exactly ten rounds, counted and resumable."""
    changes = {
        "reward__custom_reward_function": f"dapo_test_rewards:{reward}",
        "trainer__default_local_dir": str(tmp_path / "run"),
        "data__gen_batch_size": 8,
    }
    with pytest.raises(SamplingExhausted, match=rf"0 groups kept of 80 generated in 10 rounds .*80 all {reward}"):
        run(make_config(**changes))
    found = Checkpoints(tmp_path / "run", 2).latest(make_config(**changes))
    assert found is not None
    assert (found.state.step, found.state.rounds, found.state.prompts_drawn) == (0, 10, 80)
    assert found.state.cost.tokens > 80 * 4
    told = run(
        make_config(**changes, algorithm__filter_groups={"on_exhausted": "train_partial", "max_num_gen_batches": 1})
    )
    assert [step.step for step in told] == [0, 1, 2, 3]
    assert told[1].cost.tokens > found.state.cost.tokens


def test_an_update_with_nothing_to_train_on_is_skipped_and_counted(make_config, tmp_path: Path, caplog) -> None:
    config = make_config(
        reward__custom_reward_function="dapo_test_rewards:wrong",
        algorithm__filter_groups={"on_exhausted": "train_partial", "max_num_gen_batches": 2},
        trainer__default_local_dir=str(tmp_path / "run"),
        trainer__test_freq=1,
    )
    with caplog.at_level(logging.WARNING):
        told = run(config)
    assert [step.metrics.get("actor/skipped_updates") for step in told] == [None, 1.0, 2.0, 3.0]
    assert same(weights(tmp_path / "run"), weights_of_model(config))
    assert len({step.evaluation for step in told}) == 1, "every evaluation meets the same noise"
    assert "update 1 is skipped" in caplog.text
    assert "0 groups kept of 8 generated in 2 rounds" in caplog.text


def weights_of_model(config: Config) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(Path(config.model.path) / "model.safetensors")


def test_a_partial_batch_is_trained_on(make_config) -> None:
    told = run(
        make_config(
            data__train_batch_size=16,
            data__gen_batch_size=4,
            algorithm__filter_groups={"on_exhausted": "train_partial", "max_num_gen_batches": 1},
        )
    )
    for step in told[1:]:
        assert 0 < step.metrics["filter/groups"] <= 4
        assert step.metrics["filter/exhausted"] == 1.0
        assert step.metrics["actor/optimizer_steps"] == 1.0


def test_overlong_filtering_of_everything_skips_the_update(make_config, tmp_path: Path) -> None:
    """One token is never the end of a response here, so that each is cut, and masked."""
    config = make_config(
        reward__overlong_filtering=True,
        data__max_response_length=1,
        algorithm__filter_groups={"enable": False},
        trainer__default_local_dir=str(tmp_path / "run"),
        trainer__total_training_steps=1,
    )
    last = run(config)[-1].metrics
    assert last["response_length/clip_ratio"] == 1.0
    assert (last["actor/pg_loss"], last["actor/optimizer_steps"], last["actor/skipped_updates"]) == (0.0, 0.0, 1.0)
    assert all(math.isfinite(value) for value in last.values())
    assert same(weights(tmp_path / "run"), weights_of_model(config))


def test_the_overlong_penalty_reaches_the_reward(make_config) -> None:
    told = run(make_config(reward__overlong_buffer={"enable": True, "len": 4, "penalty_factor": 0.5}))
    for step in told[1:]:
        assert step.metrics["reward/overlong_penalised"] > 0.5
        assert step.metrics["reward/seq_reward_mean"] < step.metrics["reward/score_mean"]


def test_a_key_of_the_reward_function_can_be_filtered_on(make_config) -> None:
    detailed = {"grader": "custom", "custom_reward_function": "dapo_test_rewards:detailed"}
    told = run(make_config(reward=detailed, algorithm__filter_groups={"metric": "early"}))
    assert told[-1].final
    reported: list[StepMetrics] = []
    with pytest.raises(DapoError, match=r"got 'late'; need one of .*'early'"):
        train(make_config(reward=detailed, algorithm__filter_groups={"metric": "late"}), reported.append)
    assert reported == [], "told before the first token"


def test_it_runs_off_the_main_thread(make_config) -> None:
    told: list[list[StepMetrics]] = []
    thread = threading.Thread(target=lambda: told.append(run(make_config(trainer__total_training_steps=1))))
    thread.start()
    thread.join()
    assert told[0][-1].final


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is missing")
def test_real_data_runs_and_an_untrained_model_knows_nothing(make_config) -> None:
    told = run(
        make_config(
            data={
                "train": str(SHARED / "mawps-singleop.jsonl"),
                "val": str(SHARED / "aime-2024.jsonl"),
                "train_batch_size": 4,
                "max_prompt_length": 2048,
                "max_response_length": 8,
            },
            reward={"grader": "integer"},
            algorithm__filter_groups={"enable": False},
            trainer__total_training_steps=1,
        )
    )
    assert told[-1].metrics["val/aime-2024/accuracy"] == 0.0
    assert told[-1].metrics["val/problems"] == 30
    assert {sample.problem_id for sample in told[-1].evaluation} == {f"aime-2024-{number}" for number in range(30)}


def test_bad_devices_are_told(make_config) -> None:
    if not torch.cuda.is_available():
        with pytest.raises(DapoError, match=r"trainer\.device: got cuda"):
            run(make_config(trainer__device="cuda"))
