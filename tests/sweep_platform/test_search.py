"""The searcher: every sampler, no duplicates, the same again, priors first, bad regions avoided."""

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
from run_ledger.records import TrialRecord, TrialState
from small_spec import make_spec, measured, record
from sweep_platform.search import Searcher, SpaceExhausted, Suggestion, params_hash
from sweep_platform.search.searcher import MAX_REFUSED, MODELLED
from sweep_platform.spec import SamplerSpec, SweepSpec

SAMPLERS = ["ehvi", "tpe", "gp", "nsga2", "random", "qmc", "grid"]
TRIALS = 14
SPACE_72: dict[str, Any] = {
    "a": {"choice": ["x", "y", "z"]},
    "b": {"choice": [1, 2, 3, 4]},
    "c": {"int": [0, 5]},
}
CONDITIONAL: dict[str, Any] = {
    "kind": {"choice": ["spread", "mean"]},
    "cut": {"float": [0.0, 0.5], "when": "kind == 'mean' and size < 4"},
    "size": {"int": [1, 8], "log": True},
}


def run(spec: SweepSpec, trials: int, lag: int = 0) -> list[TrialRecord]:
    """Ask and tell `trials` times; each suggestion knows all results but the last `lag`."""
    searcher, records = Searcher(spec), []
    for number in range(trials):
        records.append(record(searcher.ask(number)))
        if number >= lag:
            searcher.tell(records[number - lag])
    return records


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_candidate_is_suggested_twice(sampler: str) -> None:
    spec = make_spec(SPACE_72, sampler)
    if sampler == "gp":  # half a second a suggestion
        spec = make_spec(SPACE_72).model_copy(update={"sampler": SamplerSpec(name="gp", n_startup=22)})
    records = run(spec, 30, lag=1)
    assert len({trial.params_hash for trial in records}) == 30
    assert {trial.origin.removesuffix(":startup") for trial in records} == {sampler}
    for trial in records:
        assert trial.params_hash == params_hash(trial.params)
        assert list(trial.params) == ["a", "b", "c"]
        assert [type(value) for value in trial.params.values()] == [str, int, int]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_resumed_search_goes_on_as_if_it_had_not_stopped(sampler: str) -> None:
    spec = make_spec(SPACE_72 if sampler == "grid" else CONDITIONAL, sampler)
    records = run(spec, TRIALS, lag=2)
    searcher = Searcher(SweepSpec.from_dict(spec.to_dict()))
    for trial in reversed(records[:8]):
        searcher.tell(trial)
    for trial in records[8:10]:
        searcher.pend(trial)  # finished or not: the run that is repeated didn't know their results yet
    again = []
    for number in range(10, TRIALS):
        again.append(record(searcher.ask(number)))
        searcher.tell(records[number - 2])
    assert again == records[10:]


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", "grid"])
def test_another_seed_gives_other_candidates(sampler: str) -> None:
    one, other = (run(make_spec(SPACE_72, sampler, seed=seed), 5) for seed in (0, 1))
    assert [trial.params for trial in one] != [trial.params for trial in other]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_finite_space_is_emptied_and_then_said_to_be(sampler: str) -> None:
    spec = make_spec({"a": {"choice": ["x", "y"]}, "c": {"float": [0, 1], "step": 0.5, "when": "a == 'x'"}}, sampler)
    records = run(spec, 4)
    assert {(trial.params["a"], trial.params.get("c")) for trial in records} == {
        ("x", 0.0), ("x", 0.5), ("x", 1.0), ("y", None)
    }  # fmt: skip
    searcher = Searcher(spec)
    for trial in records:
        searcher.tell(trial)
    with pytest.raises(SpaceExhausted, match="all there are"):
        searcher.ask(4)


def test_conditional_parameters_are_there_only_when_their_condition_holds() -> None:
    for trial in run(make_spec(CONDITIONAL), 25):
        assert ("cut" in trial.params) == (trial.params["kind"] == "mean" and trial.params["size"] < 4)


def test_priors_come_first_in_order_and_the_sampler_fills_the_rest() -> None:
    priors = [
        {"name": "full", "params": {"a": "z", "b": 4, "c": 5}},
        {"name": "same", "params": {"c": 5, "b": 4, "a": "z"}},
        {"name": "part", "params": {"b": 3}},
    ]
    first, second, third = run(make_spec(SPACE_72, priors=priors), 3)
    assert (first.origin, dict(first.params)) == ("prior:full", {"a": "z", "b": 4, "c": 5})
    assert (second.origin, second.params["b"]) == ("prior:part", 3)
    assert third.origin == "tpe:startup"


def refuse_large(params: Mapping[str, Any]) -> str | None:
    return "b is too large" if params["b"] > 1 else None


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2", "random", "qmc", "grid"])
def test_refused_candidates_take_numbers_and_are_never_tried_again(sampler: str) -> None:
    searcher, number, refused, good = Searcher(make_spec(SPACE_72, sampler)), 0, [], []
    for _ in range(6):
        suggestion = searcher.ask(number, refuse_large)
        refused += suggestion.refused
        good.append(suggestion)
        assert [r.number for r in suggestion.refused] == list(range(number, suggestion.number))
        searcher.tell(record(suggestion))
        number = suggestion.number + 1
    assert all(suggestion.params["b"] == 1 for suggestion in good)
    assert all(r.reason == "b is too large" for r in refused)
    hashes = [s.params_hash for s in (*good, *refused)]
    assert len(set(hashes)) == len(hashes)


def test_a_search_that_is_rebuilt_with_refused_trials_goes_on_the_same() -> None:
    spec = make_spec(SPACE_72)
    searcher, number, records = Searcher(spec), 0, []
    for _ in range(8):
        suggestion = searcher.ask(number, refuse_large)
        for r in suggestion.refused:
            stand_in = Suggestion(r.number, r.params, r.params_hash, r.origin, {})
            records.append(record(stand_in, TrialState.INFEASIBLE))
        records.append(record(suggestion))
        searcher.tell(records[-1])
        number = suggestion.number + 1
    again = Searcher(spec)
    for trial in records:
        again.tell(trial)
    assert again.ask(number, refuse_large) == searcher.ask(number, refuse_large)


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
@pytest.mark.parametrize("state", [TrialState.INFEASIBLE, TrialState.FAILED])
def test_a_bad_region_is_left(sampler: str, state: TrialState) -> None:
    """Optuna alone ignores failed trials and would stay at random: one half in each half."""
    space = {"c": {"float": [0.0, 1.0]}, "b": {"float": [0.0, 1.0]}}
    searcher, bad = Searcher(make_spec(space, sampler)), []
    for number in range(40):
        suggestion = searcher.ask(number)
        bad.append(suggestion.params["c"] > 0.5)
        searcher.tell(record(suggestion, state if bad[-1] else TrialState.COMPLETE))
    assert sum(bad[20:]) <= 6


@pytest.mark.parametrize("sampler", ["tpe", "gp", "nsga2"])
@pytest.mark.parametrize(
    ("state", "values"),
    [
        (TrialState.COMPLETE, (math.nan, 1.0)),
        (TrialState.COMPLETE, (0.5, math.inf)),
        (TrialState.COMPLETE, None),
        (TrialState.PRUNED, None),
        (TrialState.FAILED, (math.nan, math.nan)),
        (TrialState.INFEASIBLE, (0.9, 1.0)),
        (TrialState.RUNNING, None),
    ],
)
def test_no_state_and_no_number_stops_the_search(
    sampler: str, state: TrialState, values: tuple[float, float] | None
) -> None:
    searcher = Searcher(make_spec(CONDITIONAL, sampler))
    for number in range(9):
        suggestion = searcher.ask(number)
        trial = record(suggestion, state if number % 2 else TrialState.COMPLETE, values if number % 2 else None)
        searcher.tell(trial)
        searcher.tell(trial)
    assert searcher.ask(9).params


def test_a_space_in_which_nothing_can_run_is_said_to_be_so() -> None:
    with pytest.raises(SpaceExhausted, match="the last because never") as caught:
        Searcher(make_spec(CONDITIONAL)).ask(0, lambda params: "never")
    assert len(caught.value.refused) == MAX_REFUSED
    assert [r.number for r in caught.value.refused] == list(range(MAX_REFUSED))


def test_impossible_values_are_not_suggested_not_even_by_a_prior() -> None:
    priors = [{"name": "large", "params": {"a": "y", "b": 4, "c": 1}}]
    searcher = Searcher(make_spec(SPACE_72, priors=priors), impossible={"b": {3: "no", 4: "no"}})
    suggestions = [searcher.ask(number) for number in range(12)]
    assert {suggestion.params["b"] for suggestion in suggestions} == {1, 2}
    assert suggestions[0].origin == "prior:large"
    assert (suggestions[0].params["a"], suggestions[0].params["c"]) == ("y", 1)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_objective_is_enough(sampler: str) -> None:
    spec = make_spec(SPACE_72, sampler, objectives=[{"metric": "val/accuracy", "direction": "maximize"}])
    searcher = Searcher(spec)
    for number in range(8):
        suggestion = searcher.ask(number)
        searcher.tell(record(suggestion, values=(measured(suggestion.params)[0],)))


def test_a_model_finds_better_candidates_than_chance() -> None:
    """A bowl in two dimensions: 30 trials of tpe come nearer than 30 at random, on average over seeds."""

    def best(sampler: str, seed: int) -> float:
        space = {"c": {"float": [0.0, 1.0]}, "b": {"float": [0.0, 1.0]}}
        objectives = [{"metric": "val/accuracy", "direction": "maximize"}]
        searcher, found = Searcher(make_spec(space, sampler, seed=seed, objectives=objectives)), []
        for number in range(30):
            suggestion = searcher.ask(number)
            c, b = suggestion.params["c"], suggestion.params["b"]
            found.append(-((c - 0.7) ** 2) - (b - 0.2) ** 2)
            searcher.tell(record(suggestion, values=(found[-1],)))
        return max(found)

    by_sampler = {sampler: sum(best(sampler, seed) for seed in range(4)) for sampler in ("tpe", "random")}
    assert by_sampler["tpe"] > by_sampler["random"]


@pytest.mark.parametrize("sampler", ["tpe", "ehvi"])
def test_a_model_is_made_from_so_many_trials_however_many_there_are(sampler: str) -> None:
    space = {f"p{index}": {"float": [0.0, 1.0]} for index in range(8)} | {"a": {"choice": ["x", "y", "z"]}}
    searchers = [Searcher(make_spec(space, sampler)) for _ in range(2)]
    rng, trials = random.Random(0), []
    for number in range(1_000):
        params = searchers[0].space.uniform(number)
        suggestion = Suggestion(number, params, params_hash(params), sampler, {})
        trials.append(record(suggestion, values=(rng.random(), 1e9 * (1 + params["p0"]))))
    for searcher, order in zip(searchers, (trials, reversed(trials)), strict=True):
        for trial in order:
            searcher.tell(trial)
    assert len(searchers[0]._modelled(sampler)) == MODELLED[sampler]
    assert searchers[0].ask(1_000) == searchers[1].ask(1_000), "in whatever order they were told"


def test_where_compute_is_the_budget_the_first_runs_are_short() -> None:
    space = {"trainer.total_training_steps": {"choice": [5, 10, 20, 40]}, "c": {"float": [0.0, 1.0]}}
    config = {"trainer": {"total_training_steps": 5}, "c": 0.0}
    for budget, expected in (({"flops": 1e12}, {5, 10}), ({}, {5, 10, 20, 40})):
        searcher = Searcher(make_spec(space, "ehvi", config=config, budget={"trials": 30, **budget}))
        lengths = {searcher.ask(number).params["trainer.total_training_steps"] for number in range(20)}
        assert lengths == expected


def test_every_third_trial_is_chosen_whatever_it_costs() -> None:
    """Accuracy comes with b alone, as cost does, and only small ones were tried."""
    searcher = Searcher(make_spec({"b": {"int": [1, 64]}}, "ehvi", budget={"trials": 30, "flops": 1e15}))
    for number in range(6):
        params = {"b": number + 1}
        suggestion = Suggestion(number, params, params_hash(params), "ehvi", {})
        searcher.tell(record(suggestion, values=(0.1 + 0.01 * number, 1e9 * 4**number)))
    places = [searcher.ask(number).params["b"] for number in (6, 7, 8)]
    assert places[0] > max(places[1:])
