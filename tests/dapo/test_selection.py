"""Prompts chosen from their history: a Beta posterior each, Thompson sampling, and an exploration floor."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from dapo.batch import Problem, Score
from dapo.checkpoint import Checkpoints
from dapo.config import SelectionConfig
from dapo.data import Prompts
from dapo.selection import Evidence, History, select
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from training import run, weights

THOMPSON = SelectionConfig(strategy="thompson")
EVIDENCE = st.builds(Evidence, right=st.floats(0, 50), wrong=st.floats(0, 50), step=st.integers(0, 9))


def prompts_of(size: int) -> Prompts:
    return Prompts(tuple(Problem(str(i), "s", str(i), "1") for i in range(size)), tuple([i] for i in range(size)))


def scores(*accuracies: float) -> list[Score]:
    return [Score(acc, acc, acc, "") for acc in accuracies]


def chosen(history: History, count: int, *, size: int = 100, settings: SelectionConfig = THOMPSON, **at: int):
    place = {"position": 0, "step": 10, "round_number": 1, "seed": 0} | at
    return select(prompts_of(size), settings, history, count=count, **place)


def test_evidence_adds_up_and_old_evidence_counts_less() -> None:
    history = History()
    history.observe(3, scores(1.0, 1.0, 0.0), step=4, forgetting=0.5)
    assert history.evidence == {3: Evidence(2.0, 1.0, 4)}
    history.observe(3, scores(0.0), step=4, forgetting=0.5)
    assert history.evidence == {3: Evidence(2.0, 2.0, 4)}
    history.observe(3, scores(1.0), step=6, forgetting=0.5)
    assert history.evidence == {3: Evidence(1.5, 0.5, 6)}


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_evidence_counts_each_response_once(accuracies: list[float]) -> None:
    """Also where a reward function returns an `acc` beyond 0 and 1."""
    history = History()
    history.observe(0, scores(*accuracies), step=1, forgetting=1.0)
    item = history.evidence[0]
    assert item.right + item.wrong == pytest.approx(len(accuracies))
    assert 0 <= item.right <= len(accuracies)


def test_prompts_near_the_target_are_preferred() -> None:
    """Ten that are solved half of the time, forty each that always and never are."""
    history = History({index: Evidence(20.0, 20.0, 9) for index in range(10)})
    history.evidence |= {index: Evidence(40.0, 0.0, 9) for index in range(10, 50)}
    history.evidence |= {index: Evidence(0.0, 40.0, 9) for index in range(50, 90)}
    found = Counter(
        index for number in range(50) for index in chosen(history, 10, round_number=number, position=2 * number)[0]
    )
    near, far = [found[index] for index in range(10)], [found[index] for index in range(10, 90)]
    assert min(near) > 3 * max(far)


def test_the_target_can_be_moved() -> None:
    history = History({0: Evidence(50.0, 50.0, 9), 1: Evidence(10.0, 90.0, 9)})
    rng = np.random.default_rng(0)
    for target, first in ((0.5, 0), (0.1, 1)):
        settings = SelectionConfig(strategy="thompson", target=target, forgetting=1.0)
        ranks = [history.rank(2, 10, settings, rng)[:1] for _ in range(50)]
        assert ranks.count([first]) > 40


def test_what_is_forgotten_competes_like_what_was_never_known() -> None:
    """A hopeless prompt gets another chance when its evidence is old."""
    history = History({0: Evidence(0.0, 40.0, 0)})
    wins = [
        sum(bool(history.rank(1, step, THOMPSON, np.random.default_rng(seed))) for seed in range(200))
        for step in (1, 200)
    ]
    assert wins[0] < 25
    assert 70 < wins[1] < 130


def test_prompts_of_this_update_are_not_asked_again() -> None:
    history = History({index: Evidence(20.0, 20.0, 10) for index in range(5)})
    assert history.rank(5, 10, THOMPSON, np.random.default_rng(0)) == []


@given(
    st.dictionaries(st.integers(0, 29), EVIDENCE, max_size=30),
    st.integers(1, 40),
    st.integers(0, 100),
    st.floats(0.01, 1),
    st.integers(0, 5),
)
def test_a_round_is_full_repeats_itself_and_keeps_the_floor(
    evidence: dict[int, Evidence], count: int, position: int, exploration: float, seed: int
) -> None:
    settings = SelectionConfig(strategy="thompson", exploration=exploration)
    at = {"position": position, "seed": seed}
    indices, taken = chosen(History(evidence), count, size=30, settings=settings, **at)
    assert (indices, taken) == chosen(History(evidence), count, size=30, settings=settings, **at)
    assert len(indices) == count
    assert set(indices) <= set(range(30))
    if count <= 30:
        assert len(set(indices)) == count, "no prompt twice"
    assert taken >= exploration * count
    order = prompts_of(30).draw(position, taken, seed)
    from_history = sum(index in evidence for index in indices)
    assert sum(index not in order for index in indices) <= min(from_history, (1 - exploration) * count)


@given(st.integers(1, 40), st.integers(0, 100), st.integers(0, 5))
def test_without_history_it_is_the_shuffled_order(count: int, position: int, seed: int) -> None:
    order = prompts_of(50).draw(position, count, seed)
    at = {"position": position, "seed": seed}
    assert chosen(History(), count, size=50, settings=SelectionConfig(), **at) == (order, count)
    known = History({0: Evidence(1.0, 1.0, 0)})
    assert chosen(known, count, size=50, settings=SelectionConfig(), **at) == (order, count)
    if len(set(order)) == count:
        assert chosen(History(), count, size=50, **at) == (order, count)


def test_no_prompt_is_given_up_for_good() -> None:
    """The floor alone takes a whole set round, hopeless prompts too."""
    history = History({index: Evidence(0.0, 1e6, 10) for index in range(20)})
    seen: set[int] = set()
    position = 0
    for number in range(25):
        indices, taken = chosen(history, 4, size=20, position=position, step=11, round_number=number)
        position += taken
        seen |= set(indices)
    assert seen == set(range(20))


@pytest.mark.parametrize("value", [{"exploration": 0}, {"exploration": 1.5}, {"target": 1}, {"forgetting": 0}])
def test_bad_settings_are_refused(value: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        SelectionConfig.model_validate({"strategy": "thompson", **value})


@pytest.mark.parametrize("stop_at", [1, 3])
def test_posteriors_survive_a_resume_bit_for_bit(make_config, tmp_path: Path, stop_at: int) -> None:
    changes = {
        "data__selection": {"strategy": "thompson"},
        "data__gen_batch_size": 3,
        "trainer__total_training_steps": 5,
    }
    whole = run(make_config(**changes, trainer__default_local_dir=str(tmp_path / "whole")))
    config = make_config(**changes, trainer__default_local_dir=str(tmp_path / "parted"))
    run(config, stop_at=stop_at)
    told = run(config)
    states = [Checkpoints(tmp_path / name, 2).latest(config) for name in ("whole", "parted")]
    assert states[0] is not None
    assert states[1] is not None
    assert states[0].state.history == states[1].state.history
    assert states[0].state.history.evidence
    assert states[0].state.prompts_chosen == states[1].state.prompts_chosen > 0
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "parted")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert told[-1].metrics["data/epoch"] == whole[-1].metrics["data/epoch"]
    drawn = sum(step.metrics["filter/groups_generated"] for step in whole[1:])
    assert whole[-1].metrics["data/epoch"] == drawn / 10
