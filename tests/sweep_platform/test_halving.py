"""Asynchronous successive halving over two objectives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sweep_platform.frontier import Goal
from sweep_platform.pruning import Halving
from sweep_platform.spec.model import Pruning

GOALS = (Goal("val/accuracy", "maximize"), Goal("cost/flops", "minimize"))


def halving(**settings: object) -> Halving:
    return Halving(GOALS, Pruning.model_validate(settings))


def seen(accuracy: float, flops: float, error: float = 0.0) -> dict[str, float]:
    return {"val/accuracy": accuracy, "val/accuracy_se": error, "cost/flops": flops}


def test_a_rung_is_a_share_of_the_trials_own_length() -> None:
    rungs = halving(rungs=[0.25, 0.5])
    assert rungs.observe(0, 0, 40, seen(0.1, 0)) is None, "nothing was trained yet"
    assert rungs.observe(0, 9, 40, seen(0.1, 9)) is None
    assert rungs.observe(0, 10, 40, {"cost/flops": 10}) is None, "not evaluated"
    assert rungs.observe(0, 12, 40, seen(0.2, 12)) == 0, "the first evaluation at or after it"
    assert rungs.observe(0, 14, 40, seen(0.3, 14)) is None, "it stood there already"
    assert rungs.observe(0, 12, 40, seen(0.2, 12)) == 0, "told again after a resume"
    assert rungs.observe(0, 20, 40, seen(0.4, 20)) == 1
    assert rungs.observe(1, 1, 2, seen(0.4, 1)) == 1, "both at once"


def test_costs_are_projected_to_the_full_length() -> None:
    rungs = halving(rungs=[0.5])
    rungs.observe(0, 10, 20, seen(0.5, 1e9))
    assert rungs.projected(0) == (0.5, 2e9)
    assert rungs.projected(1) is None
    # Half of a run that is cheap so far, but longer, is no bargain.
    rungs.observe(1, 100, 200, seen(0.5, 2e9))
    assert rungs.projected(1) == (0.5, 4e9)
    assert not rungs.goes_on(1, 0)


def test_half_go_on_and_a_paused_one_when_more_came() -> None:
    rungs = halving(rungs=[0.5], reduction=2)
    for number, accuracy in enumerate((0.5, 0.4, 0.3, 0.6)):
        rungs.observe(number, 1, 2, seen(accuracy, 1e9))
    assert [rungs.goes_on(number, 0) for number in range(4)] == [True, False, False, True]
    assert rungs.next_of([1, 2]) is None
    rungs.observe(4, 1, 2, seen(0.1, 1e9))  # five at the rung: three may go on
    assert rungs.next_of([1, 2, 4]) == 1
    assert rungs.goes_on(1, 0)


def test_who_may_go_on_stays_so_whoever_comes() -> None:
    rungs = halving(rungs=[0.5])
    rungs.observe(0, 1, 2, seen(0.2, 1e9))
    assert rungs.goes_on(0, 0), "the first has no rival"
    for number in range(1, 6):
        rungs.observe(number, 1, 2, seen(0.5, 1e9))
    assert rungs.goes_on(0, 0)


def test_noise_alone_stops_nobody() -> None:
    def stopped(optimism: float) -> bool:
        rungs = halving(rungs=[0.5], optimism=optimism)
        for number in range(4):
            rungs.observe(number, 1, 2, seen(0.5, 1e9 + number))
        rungs.observe(9, 1, 2, seen(0.49, 1e9 - 1, error=0.02))
        rungs.observe(8, 1, 2, seen(0.48, 2e9, error=0.05))
        return not rungs.goes_on(8, 0)

    assert stopped(0.0)
    assert not stopped(1.0)


def test_the_cheap_end_of_the_front_is_not_stopped_for_its_accuracy() -> None:
    rungs = halving(rungs=[0.5])
    for number, accuracy in enumerate((0.7, 0.71, 0.72, 0.73)):
        rungs.observe(number, 1, 2, seen(accuracy, 1e12))
    rungs.observe(4, 1, 2, seen(0.4, 1e9))
    assert rungs.goes_on(4, 0)


def test_the_highest_rung_goes_first() -> None:
    rungs = halving(rungs=[0.25, 0.5], reduction=1.01)
    rungs.observe(0, 1, 4, seen(0.9, 1e9))
    rungs.observe(1, 2, 4, seen(0.1, 1e9))
    assert rungs.next_of([0, 1]) == 1


@given(st.permutations(range(6)))
def test_the_standings_know_no_order_of_arrival(arrival: list[int]) -> None:
    values = [(0.1, 5.0), (0.5, 3.0), (0.4, 2.0), (0.6, 9.0), (0.2, 1.0), (0.3, 4.0)]

    def told(sequence: list[int]) -> Halving:
        rungs = halving(rungs=[0.5])
        for number in sequence:
            rungs.observe(number, 1, 2, seen(*values[number]))
        return rungs

    first, second = told(list(range(6))), told(arrival)
    assert [first.goes_on(n, 0) for n in range(6)] == [second.goes_on(n, 0) for n in range(6)]


def test_a_single_objective_is_plain_halving() -> None:
    rungs = Halving([GOALS[0]], Pruning(rungs=(0.5,)))
    for number in range(8):
        rungs.observe(number, 1, 2, {"val/accuracy": number / 10})
    assert [n for n in range(8) if rungs.goes_on(n, 0)] == [4, 5, 6, 7]


@pytest.mark.parametrize("number", [3])
def test_why_it_stopped_names_rung_and_rivals(number: int) -> None:
    rungs = halving(rungs=[0.5])
    for other in range(4):
        rungs.observe(other, 1, 2, seen(0.5 - other / 10, 1e9))
    assert rungs.explain(number) == "at 0.5 of its length it wasn't among the best 2 of 4 trials evaluated there"


def test_a_stopped_trial_is_taken_to_rise_as_those_did_that_went_on() -> None:
    rungs = halving(rungs=[0.25, 0.5])
    for number, (shown, half, end) in enumerate([(0.4, 0.5, 0.6), (0.5, 0.7, 0.8)]):
        rungs.observe(number, 1, 4, seen(shown, 1e9))
        rungs.observe(number, 2, 4, seen(half, 2e9))
        rungs.observe(number, 4, 4, seen(end, 3e9))
    rungs.observe(2, 1, 4, seen(0.3, 2e9))
    rungs.observe(3, 2, 4, seen(0.3, 2e9))
    assert rungs.projected(2) == pytest.approx((0.55, 6e9)), "0.25 more, and 3/4 of the cost"
    assert rungs.projected(3) == pytest.approx((0.4, 3e9)), "from the second rung 0.1 more"
    rungs.observe(4, 1, 4, seen(0.1, 1e9))
    rungs.observe(4, 4, 4, seen(0.1, 4e9))
    assert rungs.projected(2)[0] == pytest.approx(0.3 + 0.5 / 3), "as others end, more is known"
