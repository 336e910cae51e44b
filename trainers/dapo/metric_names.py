"""How evaluation's metrics are called, and which of them a run of a config reports. Loads no torch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dapo.batch import Fault
from dapo.config import Config, SamplingConfig
from dapo.data import Dataset

_OF_DATA = re.compile(
    r"val(?:/(?P<source>[\w.-]+))?/"
    r"(?:(?:accuracy|pass_at_(?P<passing>\d+)|maj_at_(?P<majority>\d+))(?:_se)?|problems|response_length)"
    r"|val-core/(?P<core>[\w.-]+)/acc/(?:mean_at_(?P<mean>\d+)|maj_at_(?P<all>\d+)/mean)"
)
_ALSO = re.compile(r"(?:reward|val)/also/(?P<grader>\w+)/\w+")


def metric_name(text: str) -> str:
    """Replace what metric stores refuse in a name (`@`, `(`, …)."""
    return re.sub(r"[^\w\-. ]", "_", text)


def samples_per_problem(sampling: SamplingConfig, repeats: int) -> int:
    """Return how many responses each problem has.

    Greedy ones are all the same; a preset says how many whatever the file; otherwise each row has `n`.
    """
    if sampling.temperature == 0.0:
        return 1
    return sampling.n if sampling.preset is not None else sampling.n * repeats


def pass_sizes(samples: int) -> list[int]:
    """The k of pass@k that so many samples a problem give: the powers of 2 up to them."""
    return [1 << exponent for exponent in range(samples.bit_length())]


def majority_sizes(samples: int) -> list[int]:
    """The k of maj@k: the same and `samples` itself, but for 1."""
    return sorted({*pass_sizes(samples), samples} - {1})


def unreported(config: Config, metrics: Sequence[str], val: Dataset | None) -> Iterator[Fault]:
    """Yield a fault, under the metric's name, for each metric that no run of `config` reports.

    Args:
        config: valid.
        metrics: names that some run may report.
        val: the validation set; None where it isn't read: nothing is said then of what depends on it.
    """
    for metric in dict.fromkeys(metrics):
        if (also := _ALSO.fullmatch(metric)) and also["grader"] not in config.reward.also:
            need = f"one of reward.also, which is {list(config.reward.also)}"
            yield Fault(metric, f"the grader {also['grader']!r}", need, f"add {also['grader']} to reward.also")
        elif metric.startswith("multi_turn/") and not config.rollout.multi_turn.enable:
            yield Fault(metric, "a metric of tools", "rollout.multi_turn.enable: true", "enable it, or name another")
        elif val is not None:
            yield from _of_data(config, metric, val)


def _of_data(config: Config, metric: str, val: Dataset) -> Iterator[Fault]:
    """A data set that isn't evaluated on, or a number of samples that there isn't."""
    sources = {metric_name(problem.data_source) for problem in val.problems[: config.data.val_size]}
    samples = samples_per_problem(config.rollout.val_kwargs, val.repeats)
    match = _OF_DATA.fullmatch(metric)
    parts = {} if match is None else {name: text for name, text in match.groupdict().items() if text is not None}
    source = parts.get("source", parts.get("core"))
    if source is not None and source not in sources:
        need = f"one that data.val evaluates on: {', '.join(sorted(sources))}"
        yield Fault(metric, f"the data set {source!r}", need, "name one of these, or leave it out for all together")
    of_all = [samples] if samples > 1 else []
    sizes = {"passing": pass_sizes(samples), "majority": majority_sizes(samples), "mean": [samples], "all": of_all}
    for kind, known in sizes.items():
        if kind in parts and int(parts[kind]) not in known:
            need = f"one of {', '.join(map(str, known))}" if known else "two samples a problem, at least"
            need += f", with {samples} a problem (rollout.val_kwargs.n times its rows)"
            yield Fault(metric, f"{parts[kind]} samples", need, "name such a number, or set rollout.val_kwargs.n")
