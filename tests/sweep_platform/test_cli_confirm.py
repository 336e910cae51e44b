"""The command confirm, and what the other commands make of it."""

from pathlib import Path

import pytest
from shell import Shell


def test_the_front_is_confirmed_shown_picked_and_exported(platform: Shell, tmp_path: Path) -> None:
    assert platform("sweep", "toy.yaml", "budget.trials=4", "--executor", "inline", "--plain").code == 0
    before = platform("pick", "toy")
    assert "(one run, not confirmed)" in before.out
    assert "next: platform confirm toy tells noise from merit" in before.out
    front = [point["number"] for point in platform("pareto", "toy", "--json").json["points"]]

    reply = platform("confirm", "toy", "--max-runs", "2", "--executor", "inline", "--plain")
    assert reply.code == 0, reply.err
    assert "confirm.config names no held-out data" in reply.err
    assert "toy@1 frontier, confirmed" in reply.out
    told = platform("pareto", "toy", "--json").json
    assert told["confirmed"] and {point["confirming_runs"] for point in told["points"]} == {2}
    runs = [trial for trial in platform("status", "toy", "--json").json["trials"] if trial["replicate"]]
    assert len(runs) == 2 * len(front)
    assert {trial["origin"] for trial in runs} == {"confirm"}

    assert "(confirmed by 2 runs)" in platform("pick", "toy").out
    file = tmp_path / "best.yaml"
    assert platform("export", "toy", "--knee", "--out", file).code == 0
    assert "over 2 confirming runs." in file.read_text()

    again = platform("confirm", "toy", "--max-runs", "2", "--executor", "inline", "--plain")
    assert again.code == 0 and "started" not in again.out, "there is nothing left to run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("nosuch",), "sweep: got 'nosuch'; need one of ['toy']"),
        (("toy", "--runs", "5", "--max-runs", "3"), "--max-runs: got 3; need at least --runs, which is 5"),
        (("toy", "--executor", "cloud"), "--executor: got 'cloud'; need ray or inline"),
    ],
)
def test_bad_input_is_refused(platform: Shell, options: tuple[str, ...], message: str) -> None:
    assert platform("sweep", "toy.yaml", "budget.trials=1", "--executor", "inline", "--plain").code == 0
    reply = platform("confirm", *options)
    assert (reply.code, reply.out) == (2, "")
    assert message in reply.err


def test_held_out_data_in_the_spec_is_checked(platform: Shell) -> None:
    reply = platform("validate", "toy.yaml", "+confirm={config: {actor.lrr: 1, actor.lr: fast}}")
    assert reply.code == 2
    assert "confirm.config.actor.lrr: got unknown path 'actor.lrr'" in reply.err
    assert "did you mean actor.lr?" in reply.err
    assert "confirm.config.actor.lr: got 'fast'" in reply.err
