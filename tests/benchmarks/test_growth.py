"""The estimates of published runs: told apart from measurements, and not far off."""

from benchmarks._published_steps import RUNS, fitted


def test_published_steps_are_estimated_within_a_factor_of_two() -> None:
    estimates = {name: run.estimate() for name, run in fitted().items()}
    ratios = {name: estimates[name].total / run.seconds["step"] for name, run in RUNS.items() if run.seconds}
    assert len(ratios) == 5 and all(0.5 <= ratio <= 2 for ratio in ratios.values()), ratios
    assert estimates["32B, 16 x 8 H800"].total < estimates["32B, 128 A800"].total
    assert all(run.assumed and run.source.startswith("https://") for run in RUNS.values())
