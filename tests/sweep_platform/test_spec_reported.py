"""Objectives and bounds on metrics that the trials of a spec report."""

from pathlib import Path

import pytest
from sweep_platform.errors import BadInput
from sweep_platform.spec import load_spec

AIME = Path(__file__).parents[2] / "sweeps" / "aime.yaml"


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("objectives=[{metric: val/foo/accuracy, direction: maximize}]", "objectives.0.metric"),
        ("objectives=[{metric: val/pass_at_64, direction: maximize}]", "objectives.0.metric"),
        ("constraints=['val/maj_at_3 >= 0.1']", "constraints.0"),
    ],
)
def test_a_metric_that_no_trial_of_this_spec_reports_is_refused(override: str, place: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_spec(AIME, [override], preflight=True)
    (fault,) = caught.value.faults
    assert fault.where == f"override:{place}"


def test_a_metric_that_a_value_of_the_search_brings_is_taken() -> None:
    objective = "objectives=[{metric: val/pass_at_16, direction: maximize}]"
    assert load_spec(AIME, [objective, "+search.rollout.val_kwargs.n.choice=[4,16]"], preflight=True)
