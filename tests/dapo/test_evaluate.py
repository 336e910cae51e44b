from itertools import combinations

import pytest
from dapo.accounting import Meter
from dapo.batch import EvaluatedSample
from dapo.config import Config
from dapo.data import load_dataset, tokenize
from dapo.evaluate import clustered_mean, describe, evaluate, evaluation_metrics, majority_right, pass_at_k
from dapo.reward import Scorer
from hypothesis import given
from hypothesis import strategies as st


def sample(
    problem: str, correct: bool, *, index: int = 0, answer: str | None = None, source: str = "aime"
) -> EvaluatedSample:
    read = answer if answer is not None else ("42" if correct else "0")
    return EvaluatedSample(source, problem, index, "p", f"Answer: {read}", read, "42", correct, 5)


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
    assert evaluation_metrics(by_problem) == pytest.approx(evaluation_metrics(by_row))
    assert evaluation_metrics(by_row)["val/problems"] == 30
    assert evaluation_metrics(by_row)["val/maj_at_32"] == 0.0


def test_repeats_multiply_the_samples(policy, make_config) -> None:
    two = make_config(rollout__val_kwargs={"n": 6})
    assert evaluated(policy, make_config(rollout__val_kwargs={"n": 2}), repeats=3)[0] == evaluated(policy, two)[0]


def test_the_error_is_that_of_problems_not_of_samples() -> None:
    """Thirty-two samples of one problem that all agree carry no more information than one."""
    few = [sample(str(p), p < 5, index=i) for p in range(10) for i in range(2)]
    many = [sample(str(p), p < 5, index=i) for p in range(10) for i in range(32)]
    for samples in (few, many):
        metrics = evaluation_metrics(samples)
        assert metrics["val/accuracy"] == 0.5
        assert metrics["val/accuracy_se"] == pytest.approx((0.25 * 10 / 9 / 10) ** 0.5)


def test_sources_are_told_apart_and_named_for_metric_stores() -> None:
    samples = [sample("1", True, source="aime@2024 (I)"), sample("1", False, source="amc")]
    metrics = evaluation_metrics(samples)
    assert metrics["val/aime_2024 _I_/accuracy"] == 1.0
    assert metrics["val/amc/accuracy"] == 0.0
    assert metrics["val/accuracy"] == 0.5


def test_a_single_problem_has_no_error() -> None:
    assert clustered_mean([0.25]) == (0.25, 0.0)


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
    metrics = evaluation_metrics([sample("1", index == 0, index=index, answer="") for index in range(4)])
    assert "val/maj_at_4" not in metrics
    assert metrics["val/accuracy"] == 0.25


def test_the_sampling_stands_beside_the_number() -> None:
    text = describe(evaluation_metrics([sample("1", True)]), Config())
    assert "n=4, temperature=1.0, top_p=0.7" in text


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
