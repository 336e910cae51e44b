"""Which parameters decide about an objective, and how far a few trials can say.

Optuna's fANOVA (Hutter 2014): the share of an objective's variance, as a random forest has learnt it, that each
parameter explains by itself. Parameters go in as their places on their scales, so that a logarithmic range is one,
and costs as logarithms. An inactive conditional parameter stands in the middle of its range (a name: at a value of its
own), so that what switches it off has the credit for that. Two questions go with each answer: what chance alone would
reach (the results shuffled over the trials), and how far the answer moves when a fifth of the trials is left out and
each result lies within its error.

PED-ANOVA, which knows conditional parameters by itself, compares the best few trials with the rest. Of fourteen trials
that is too little: it did not see the length of training behind the accuracy, where fANOVA gave it two thirds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sweep_platform.insight.material import Absent, Material
from sweep_platform.plots.insight_pictures import Bar, BarPanel, ImportancePicture
from sweep_platform.plots.picture import title
from sweep_platform.search.encoding import is_ordered, place_of
from sweep_platform.spec import Domain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from optuna.distributions import BaseDistribution

    Array = NDArray[np.float64]

LEAST = 8
"""Complete trials below which nothing is said."""
SHUFFLES, REDRAWS = 20, 12
TREES, DEPTH = 32, 4
"""Of a forest; more of either takes longer, and changes no share by more than the trials' noise does."""
FEW_TREES = 8
"""Of the forests that show the noise: a little more of it, to be on the safe side, in a quarter of the time."""
_SEED = 0
_INACTIVE = "inactive"


def importance(material: Material) -> ImportancePicture | Absent:
    """The importance of each parameter that varied, for each objective."""
    paths, count = material.varied, len(material.points)
    if count < LEAST:
        return Absent(f"needs {LEAST} complete trials; there are {count}")
    if len(paths) < 2:
        return Absent(f"needs two parameters with several values; {len(paths)} had")
    panels = tuple(_panel(material, index, paths) for index in range(len(material.goals)))
    named = ", ".join(sorted({bar.label for panel in panels for bar in panel.bars if bar.share > bar.chance}))
    found = f"Beyond chance: {named}" if named else "No parameter stands out from chance yet; more trials may tell"
    return ImportancePicture(
        f"{material.address}: what mattered",
        f"{found}. Share of the variance that a parameter explains by itself (fANOVA over {count} trials, costs as "
        "logarithms); lines: where most answers lie with a fifth of the trials left out and results within their "
        f"errors; marks: the most that {SHUFFLES} shuffles of the results gave",
        panels,
    )


def order_for(material: Material, goal: int, paths: Sequence[str]) -> list[str]:
    """The parameters, the most important for a goal first."""
    shares = _Measured(material, paths)(material.losses()[:, goal])
    return [paths[index] for index in sorted(range(len(paths)), key=lambda index: -shares[index])]


def _panel(material: Material, goal: int, paths: Sequence[str]) -> BarPanel:
    import numpy as np

    rng, measured = np.random.default_rng(_SEED), _Measured(material, paths)
    losses = material.losses()[:, goal]
    chance = np.array([measured(rng.permutation(losses), FEW_TREES) for _ in range(SHUFFLES)])
    errors = _errors(material, goal)
    spread = []
    for _ in range(REDRAWS):
        drawn = losses + errors * rng.standard_normal(len(losses))
        drawn[rng.choice(len(losses), round(0.2 * len(losses)), replace=False)] = np.inf
        spread.append(measured(drawn, FEW_TREES))
    found = measured(losses)
    low, high = np.quantile(spread, (0.1, 0.9), axis=0)
    limit, names = chance.max(0), material.names()
    bars = [
        Bar(names[path], share, min(share, float(low[i])), max(share, float(high[i])), float(limit[i]))
        for i, (path, share) in enumerate(zip(paths, map(float, found), strict=True))
    ]
    about = material.goals[goal]
    panel_title = f"for {'more' if about.maximize else 'less'} {title(about.metric)}"
    return BarPanel(panel_title, tuple(sorted(bars, key=lambda bar: -bar.share)))


def _errors(material: Material, goal: int) -> Array:
    """The standard error of each point's loss."""
    import numpy as np

    about = material.goals[goal]
    sizes = [
        abs(point.values[goal]) if about.is_cost else 1.0 for point in material.points
    ]  # a logarithm's is relative
    return np.array([(p.errors[goal] or 0.0) / (size or 1.0) for p, size in zip(material.points, sizes, strict=True)])


class _Measured:
    """The points' params as a study, whose importances are asked for again and again with other results."""

    def __init__(self, material: Material, paths: Sequence[str]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        domains = {path: material.domains[path] for path in paths}
        told = {path: _distribution(domain) for path, domain in domains.items()}
        self._paths = paths
        self._study = optuna.create_study()
        for point in material.points:
            params = {path: _coordinate(domain, point.params, path) for path, domain in domains.items()}
            self._study.add_trial(optuna.trial.create_trial(value=0.0, params=params, distributions=told))

    def __call__(self, losses: Array, trees: int = TREES) -> Array:
        """Importance by parameter; adds up to 1 unless nothing differs. Points whose loss is infinite are left out."""
        import numpy as np
        from optuna.importance import FanovaImportanceEvaluator

        known = losses[np.isfinite(losses)]
        if np.ptp(known) == 0:
            return np.zeros(len(self._paths))
        evaluator = FanovaImportanceEvaluator(n_trees=trees, max_depth=DEPTH, seed=_SEED)
        try:
            found = evaluator.evaluate(
                self._study, params=list(self._paths), target=lambda trial: float(losses[trial.number])
            )
        except RuntimeError:  # no tree found any variance
            return np.zeros(len(self._paths))
        shares = np.array([found[path] for path in self._paths])
        total = float(shares.sum())
        return shares / total if total > 0 else shares


def _distribution(domain: Domain) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if is_ordered(domain):
        return FloatDistribution(0.0, 1.0)
    return CategoricalDistribution([*map(str, domain.samples()), _INACTIVE])


def _coordinate(domain: Domain, params: Mapping[str, Any], path: str) -> float | str:
    if is_ordered(domain):
        return place_of(domain, params[path]) if path in params else 0.5
    return str(params[path]) if path in params else _INACTIVE
