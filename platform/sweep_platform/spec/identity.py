"""When two specs are the same sweep: what must not change between two runs of it, and what may.

In: everything that changes what is trained, measured, suggested or allowed: trainer, the whole base config,
objectives, constraints, search space, priors, sampler, pruning, seed, `hardware.devices` and `memory_gb` (they decide
feasibility) and `budget.concurrency` (a suggestion doesn't know the last `concurrency` results).

Out: `name` (it is the address), the rest of the budget (so that a sweep can be continued with a larger one), `confirm`
(which is about what comes after) and `hardware.name`. The threads of a trial change the order of float sums but not
what a trial measures, so a sweep may go on on a machine with other cores, unless an objective or a constraint is a
time (`cost/device_seconds`, `perf/throughput` and other rates, `timing_s/…`): then `hardware.name` and `cores` are in.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sweep_platform.spec.paths import flatten

TIMED = (
    *("cost/device_seconds", "perf/throughput", "perf/tokens_per_s", "perf/mfu/", "perf/idle"),
    *("timing_s/", "timing_per_token_ms/"),
)


def _view(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a stored spec that makes its identity; an older one may lack keys."""
    view = {key: value for key, value in spec.items() if key not in ("name", "budget", "hardware", "priors", "confirm")}
    view["priors"] = [{"name": prior["name"], "params": prior["params"]} for prior in spec.get("priors", [])]
    view["budget"] = {"concurrency": spec.get("budget", {}).get("concurrency")}
    hardware = spec.get("hardware", {})
    metrics = [objective["metric"] for objective in spec.get("objectives", [])]
    metrics += spec.get("constraints", [])
    timed = any(metric.strip().startswith(TIMED) for metric in metrics)
    keys = ("devices", "memory_gb", "name", "cores") if timed else ("devices", "memory_gb")
    view["hardware"] = {key: hardware.get(key) for key in keys}
    return view


def canonical_json(value: Any) -> str:
    """One text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def identity_of(spec: Mapping[str, Any]) -> str:
    """sha256 of the part of a stored spec that makes its identity."""
    return hashlib.sha256(canonical_json(_view(spec)).encode()).hexdigest()


def changes(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The differences that matter, as `key.path: was X, is Y` in the order of the keys."""
    old, new = flatten(_view(stored)), flatten(_view(now))
    lines = []
    for path in dict.fromkeys([*new, *old]):
        if path not in old:
            lines.append(f"{path}: was not there, is {_show(new[path])}")
        elif path not in new:
            lines.append(f"{path}: was {_show(old[path])}, is gone")
        elif canonical_json(old[path]) != canonical_json(new[path]):
            lines.append(f"{path}: was {_show(old[path])}, is {_show(new[path])}")
    return lines


def _show(value: Any) -> str:
    text = canonical_json(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
