"""The model between the recorded runs, and the noise that it draws."""

from __future__ import annotations

import numpy as np
from recorded.limits import BASE, CLIP_HIGH, CLIP_LOW, knobs
from recorded.surrogate import drawn, encoded, expected, knotted, surrogate
from recorded.table import KNOTS, recorded_runs


def test_knots_and_curves_are_two_forms_of_one_thing() -> None:
    run = recorded_runs()[0]
    found = surrogate().curve(knotted(run.curve))
    ends = np.array(KNOTS)
    for name in ("accuracy", "flops", "tokens", "device_seconds", "filter/yield"):
        assert np.allclose(found[name][ends], run.curve[name][ends], rtol=1e-9)
    assert all(np.all(np.diff(found[name]) > 0) for name in ("flops", "tokens", "device_seconds"))


def test_the_model_is_near_what_it_was_fitted_to() -> None:
    gaps = [expected(run.params)["accuracy"][40] - run.curve["accuracy"][40] for run in recorded_runs()]
    assert np.sqrt(np.mean(np.square(gaps))) < 0.03
    ratios = [expected(run.params)["flops"][40] / run.curve["flops"][40] for run in recorded_runs()]
    assert np.mean(np.abs(np.log(ratios))) < 0.1


def test_noise_has_the_size_and_the_correlation_that_pairs_of_seeds_show() -> None:
    model, rng = surrogate(), np.random.default_rng(0)
    noise = np.array([model.noise(rng) for _ in range(4000)])
    seen = model.differences
    sizes = np.sqrt((seen**2).mean(0) / 2)
    assert np.allclose(noise.std(0), sizes, rtol=0.06)
    measured = (seen[:, 0, 5] * seen[:, 0, 9]).mean() / 2
    assert abs((noise[:, 0, 5] * noise[:, 0, 9]).mean() - measured) < 0.06 * sizes[0, 5] * sizes[0, 9]


def test_what_is_drawn_depends_on_config_and_seed_alone() -> None:
    params = knobs(BASE)
    other = {**params, CLIP_LOW: 0.15}
    finals = [drawn(p, seed)["accuracy"][40] for p in (params, other) for seed in (3, 4, 3)]
    assert finals[0] == finals[2]
    assert len(set(finals)) == 4
    mean = np.mean([drawn(params, seed)["accuracy"][40] for seed in range(300)])
    assert abs(mean - expected(params)["accuracy"][40]) < 0.005


def test_each_knob_has_its_coordinate() -> None:
    params = knobs(BASE)
    base = np.array(encoded(params))
    for path, value in {CLIP_LOW: 0.3, CLIP_HIGH: 0.4}.items():
        assert (np.array(encoded({**params, path: value})) != base).sum() == 1
    rows = np.array([encoded(run.params) for run in recorded_runs()])
    assert rows.min() >= 0.0
    assert rows.max() <= 1.0
