import random

import pytest
from dapo.config import Config
from dapo.diagnosis import chance_mixed
from dapo.expected_rounds import describe_rounds, expected_rounds, mixed_share
from dapo.plan import describe_plan
from dapo.trainer import describe


def config(n: int = 8, **filtering: object) -> Config:
    data = {"train_batch_size": 4, "gen_batch_size": 4}
    algorithm = {"filter_groups": filtering}
    return Config.model_validate({"data": data, "rollout": {"n": n}, "algorithm": algorithm})


@pytest.mark.parametrize(("responses", "share", "rounds"), [(8, 0.2163, 4.6), (16, 0.3857, 2.6)])
def test_hard_prompts_and_small_groups_take_many_rounds(responses: int, share: float, rounds: float) -> None:
    """1 - p^G - (1 - p)^G at p = 0.03: what hit a cap of 10 rounds with G = 8 and not with 16."""
    assert mixed_share(0.03, responses) == pytest.approx(share, abs=1e-4)
    assert expected_rounds(config(responses), 0.03) == pytest.approx(rounds, abs=0.05)
    plan = describe_rounds(config(responses))
    assert f"of 4 prompts x {responses} responses, about {rounds} at a pass rate of 3%" in plan


def test_the_share_is_what_draws_give() -> None:
    draw = random.Random(1)
    rights = [sum(draw.random() < 0.2 for _ in range(8)) for _ in range(20000)]
    found = sum(chance_mixed(8, right, 8) for right in rights) / len(rights)
    assert mixed_share(0.2, 8) == pytest.approx(found, abs=0.01)


def test_the_cap_is_told_and_what_to_do_where_it_is_too_low() -> None:
    assert describe_rounds(config(8)).endswith("(at most 10)")
    assert describe_rounds(config(8, max_num_gen_batches=2)).endswith(
        "(at most 2); where it takes more, raise rollout.n"
    )
    assert "at most" not in describe_rounds(config(2, max_num_gen_batches=0))


def test_a_pilot_decides() -> None:
    pilots = Config.model_validate({"rollout": {"n": 8, "pilot_n": 2}})
    assert expected_rounds(pilots, 0.1) == pytest.approx(1 / 0.18)


@pytest.mark.parametrize(
    "filtering",
    [{"enable": False}, {"metric": "seq_reward"}, {"statistic": "mean", "threshold": 0.2}, {"metric": "f1"}],
)
def test_other_rules_promise_nothing(filtering: dict[str, object]) -> None:
    assert describe_rounds(config(8, **filtering)) == ""
    assert "rounds per batch" not in describe_plan(config(8, **filtering), 10)


def test_it_is_in_the_plan_and_said_by_the_trainer() -> None:
    assert describe_rounds(config()) == describe(config())
    assert describe_plan(config(), 10).endswith(describe_rounds(config()))
