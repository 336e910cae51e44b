from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from dapo.accounting import Meter
from dapo.batch import EvaluatedSample
from dapo.config import Config, SamplingConfig
from dapo.data import GENERATED, load_dataset, tokenize
from dapo.evaluate import (
    clustered_mean,
    describe,
    evaluate,
    evaluation_metrics,
    majority_at_k,
    majority_right,
    pass_at_k,
)
from dapo.metric_names import samples_per_problem
from dapo.reward import Scorer
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sweep_platform.spec import load_spec

SWEEPS = Path(__file__).parents[2] / "sweeps"


def sample(
    problem: str, correct: bool, *, index: int = 0, answer: str | None = None, source: str = "aime"
) -> EvaluatedSample:
    read = answer if answer is not None else ("42" if correct else "0")
    return EvaluatedSample(source, problem, index, "p", f"Answer: {read}", read, "42", correct, 5)


def metrics_of(samples: Iterable[EvaluatedSample]) -> dict[str, float]:
    return evaluation_metrics(samples, SamplingConfig())


def evaluated(policy, config: Config, repeats: int = 1) -> tuple[tuple[EvaluatedSample, ...], Meter]:
    meter = Meter()
    prompts = tokenize(load_dataset("arithmetic-aime", "integer", 5), policy.tokenizer, config, "data.val")
    scorer = Scorer(config.reward, config.data.max_response_length)
    return evaluate(policy, prompts, scorer, config, meter, repeats=repeats), meter


def test_rows_repeated_and_samples_drawn_are_the_same_thing() -> None:
    """960 rows of 30 problems with n = 1 and 30 rows with n = 32 give the same numbers."""
    right = {problem: problem % 7 for problem in range(30)}
    by_problem = [sample(str(p), index < right[p], index=index) for p in range(30) for index in range(32)]
    by_row = [sample(str(p), index < right[p]) for index in range(32) for p in range(30)]
    assert metrics_of(by_problem) == pytest.approx(metrics_of(by_row))
    assert metrics_of(by_row)["val/problems"] == 30
    assert metrics_of(by_row)["val/maj_at_32"] == 0.0


def test_repeats_multiply_the_samples(policy, make_config) -> None:
    two = make_config(rollout__val_kwargs={"n": 6})
    assert evaluated(policy, make_config(rollout__val_kwargs={"n": 2}), repeats=3)[0] == evaluated(policy, two)[0]


def test_the_error_is_that_of_problems_not_of_samples() -> None:
    """Thirty-two samples of one problem that all agree carry no more information than one."""
    few = [sample(str(p), p < 5, index=i) for p in range(10) for i in range(2)]
    many = [sample(str(p), p < 5, index=i) for p in range(10) for i in range(32)]
    for samples in (few, many):
        metrics = metrics_of(samples)
        assert metrics["val/accuracy"] == 0.5
        assert metrics["val/accuracy_se"] == pytest.approx((0.25 * 10 / 9 / 10) ** 0.5)


def test_sources_are_told_apart_and_named_for_metric_stores() -> None:
    samples = [sample("1", True, source="aime@2024 (I)"), sample("1", False, source="amc")]
    metrics = metrics_of(samples)
    assert metrics["val/aime_2024 _I_/accuracy"] == 1.0
    assert metrics["val/amc/accuracy"] == 0.0
    assert metrics["val/accuracy"] == 0.5


def test_a_single_problem_has_no_error() -> None:
    """An error of 0 would say that its accuracy is exact; a metric that is not there says nothing."""
    assert clustered_mean([0.25]) == (0.25, None)
    metrics = metrics_of([sample("1", index == 0, index=index) for index in range(4)])
    assert metrics["val/accuracy"] == 0.25
    assert not [name for name in metrics if name.endswith("_se")]
    assert describe(metrics).startswith("val/accuracy 0.2500 (1 problems, n=4,")


@given(st.integers(1, 8), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_right_sample(n: int, data: st.DataObject) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=n, max_size=n))
    k = data.draw(st.integers(1, n))
    subsets = list(combinations(flags, k))
    assert pass_at_k(n, sum(flags), k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_n_with_one_right_sample_is_certain() -> None:
    """verl's best@32 draws with replacement, and says 0.62 here."""
    assert pass_at_k(32, 1, 32) == 1.0


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["42", "42", "7"], 1.0),
        (["42", "7", "7"], 0.0),
        (["42", "7"], 0.5),
        (["", "", "42"], 1.0),
        (["", ""], 0.0),
    ],
)
def test_majority(answers: list[str], expected: float) -> None:
    assert majority_right([sample("1", answer == "42", answer=answer) for answer in answers]) == expected


def test_without_answers_there_is_no_majority() -> None:
    """A reward function that returns a float says how good a response is, not what it answers."""
    metrics = metrics_of([sample("1", index == 0, index=index, answer="") for index in range(4)])
    assert "val/maj_at_4" not in metrics
    assert metrics["val/accuracy"] == 0.25


def test_the_sampling_stands_beside_the_number() -> None:
    samples = [sample("1", True, index=index) for index in range(3)]
    metrics = evaluation_metrics(samples, SamplingConfig(n=1, temperature=0.6, top_p=0.95, top_k=20))
    assert {name: value for name, value in metrics.items() if name.startswith("val/sampling/")} == {
        "val/sampling/n": 3.0,  # the file holds each problem three times
        "val/sampling/temperature": 0.6,
        "val/sampling/top_p": 0.95,
        "val/sampling/top_k": 20.0,
    }
    assert describe(metrics).endswith("(1 problems, n=3, temperature=0.6, top_p=0.95, top_k=20)")


def test_each_number_has_its_error() -> None:
    samples = [sample(str(p), index < p, index=index) for p in range(5) for index in range(4)]
    metrics = metrics_of(samples)
    for name in ("accuracy", "pass_at_1", "pass_at_2", "pass_at_4", "maj_at_2", "maj_at_4"):
        assert metrics[f"val/{name}_se"] == metrics[f"val/aime/{name}_se"] > 0
    # Nothing, then one to four of four samples right: pass@4 is 0 once and 1 four times, of five.
    assert (metrics["val/pass_at_4"], metrics["val/pass_at_4_se"]) == pytest.approx((0.8, (0.2 * 0.8 / 4) ** 0.5))
    assert metrics["val/accuracy_se"] == metrics["val/pass_at_1_se"]


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.data())
def test_majority_at_k_is_the_mean_over_blocks(flags: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(flags)))
    group = [sample("1", flag, index=index) for index, flag in enumerate(flags)]
    blocks = [group[start : start + k] for start in range(0, len(flags), k)]
    full = [majority_right(block) for block in blocks if len(block) == k]
    assert majority_at_k(group, k) == pytest.approx(sum(full) / len(full))
    assert majority_at_k(group, len(group)) == majority_right(group)


def test_fewer_samples_than_a_power_of_two_have_their_own_k() -> None:
    metrics = metrics_of([sample("1", index < 2, index=index) for index in range(3)])
    assert metrics["val/maj_at_3"] == 1.0
    assert "val/maj_at_4" not in metrics
    assert "val/maj_at_1" not in metrics


@cache
def verl_validation_metrics():
    """Import verl's, which takes seconds."""
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    return process_validation_metrics


@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.sampled_from("012"), min_size=4, max_size=4)), max_size=6))
@settings(max_examples=20, deadline=None)
def test_average_and_names_are_verls(problems: list[tuple[str, list[str]]]) -> None:
    samples = [
        sample(str(number), answer == "0", index=index, answer=answer, source=source)
        for number, (source, answers) in enumerate(problems)
        for index, answer in enumerate(answers)
    ]
    theirs = verl_validation_metrics()(
        [item.data_source for item in samples],
        [item.problem_id for item in samples],
        {"acc": [float(item.correct) for item in samples], "pred": [item.answer for item in samples]},
    )
    ours = metrics_of(samples)
    for source in {source for source, _ in problems}:
        assert ours[f"val-core/{source}/acc/mean_at_4"] == pytest.approx(theirs[source]["acc"]["mean@4"])
        assert "maj@4/mean" in theirs[source]["acc"]
        assert f"val-core/{source}/acc/maj_at_4/mean" in ours


def test_pass_at_n_is_no_bootstrap() -> None:
    """One right sample of 32: verl's best@32 draws them with replacement and comes to about 0.63."""
    flags = [float(index == 0) for index in range(32)]
    theirs = verl_validation_metrics()(["a"] * 32, ["1"] * 32, {"acc": flags})["a"]["acc"]
    ours = metrics_of([sample("1", flag > 0, index=index) for index, flag in enumerate(flags)])
    assert theirs["mean@32"] == ours["val/accuracy"] == 1 / 32
    assert theirs["best@32/mean"] < 0.7
    assert ours["val/pass_at_32"] == 1.0


def test_the_aime_protocol() -> None:
    sampling = SamplingConfig(preset="aime")
    assert (sampling.n, sampling.temperature, sampling.top_p, sampling.top_k) == (32, 1.0, 0.7, -1)
    assert SamplingConfig.model_validate(sampling.model_dump()) == sampling
    assert SamplingConfig(preset="aime", n=32) == sampling
    with pytest.raises(ValidationError, match="n: 32, the preset aime's, where 8 is set"):
        SamplingConfig(preset="aime", n=8)
    with pytest.raises(ValidationError, match="preset"):
        SamplingConfig(preset="nosuch")


def test_the_aime_protocol_is_32_samples_a_problem_however_often_it_stands_in_the_file() -> None:
    assert [samples_per_problem(SamplingConfig(preset="aime"), repeats) for repeats in (1, 32)] == [32, 32]
    assert samples_per_problem(SamplingConfig(n=1), 32) == 32
    assert samples_per_problem(SamplingConfig(temperature=0), 32) == 1


@pytest.mark.parametrize("spec", sorted(SWEEPS.glob("*.yaml")), ids=lambda path: path.stem)
def test_no_search_touches_the_held_out_split(spec: Path) -> None:
    """Neither by name nor by a problem that also stands in the sets it trains and validates on."""
    loaded = load_spec(spec, ())
    held_out = {problem.problem for problem in load_dataset("arithmetic-heldout", "integer").problems}
    sources = {loaded.data["train"], loaded.data["val"]}
    for name, domain in loaded.search.items():
        if name in ("data.train", "data.val"):
            sources |= set(domain.choice)
    assert "arithmetic-heldout" not in sources
    for source in sources & GENERATED.keys():
        assert held_out.isdisjoint(problem.problem for problem in load_dataset(source, "integer").problems)


def test_every_sample_is_kept_and_charged_as_evaluation(policy, make_config) -> None:
    samples, meter = evaluated(policy, make_config())
    assert [(s.problem_id, s.sample_index) for s in samples[:2]] == [
        (samples[0].problem_id, 0),
        (samples[0].problem_id, 1),
    ]
    assert len(samples) == 10
    assert meter.cost.evaluation_tokens == sum(s.response_length for s in samples) > 0
    assert meter.cost.evaluation_flops > 0
    assert (meter.cost.tokens, meter.cost.flops) == (0, 0.0)


def test_the_noise_depends_on_the_seed_alone(policy, make_config) -> None:
    import torch

    first = evaluated(policy, make_config())[0]
    torch.rand(5)
    assert evaluated(policy, make_config(data__train_batch_size=2))[0] == first
    assert evaluated(policy, make_config(trainer__seed=1))[0] != first
    before = torch.random.get_rng_state()
    evaluated(policy, make_config())
    assert torch.equal(torch.random.get_rng_state(), before)


def test_greedy_evaluation_draws_one_sample(policy, make_config) -> None:
    samples, _ = evaluated(policy, make_config(rollout__val_kwargs={"n": 4, "temperature": 0}))
    assert len(samples) == 5
