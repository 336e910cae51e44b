"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Mapping

_SI = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_UNIT = {"cost/flops": "FLOPs", "cost/tokens": "tokens", "cost/device_seconds": "device-s"}


def si(value: float, unit: str = "") -> str:
    """Three significant digits with an SI prefix: 1.53e12, "FLOPs" -> "1.53 TFLOPs"."""
    for factor, prefix in _SI:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}".rstrip()
    return f"{value:.3g} {unit}".rstrip()


def metric(name: str, value: float) -> str:
    """A metric's value with its unit where the name tells one."""
    if name in _UNIT:
        return si(value, _UNIT[name])
    return f"{value:.4g}"


def accuracy(value: float, error: float | None) -> str:
    """An accuracy with its standard error, as fractions: "0.412 ± 0.021"."""
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"


def sampling(metrics: Mapping[str, float]) -> str:
    """How an accuracy's answers were drawn, as far as `val/sampling/…` tells: " (n=4, temperature=1, top_p=0.7)"."""
    names = ("n", "temperature", "top_p", "top_k")
    told = [f"{name}={metrics[key]:g}" for name in names if (key := f"val/sampling/{name}") in metrics]
    return f" ({', '.join(told)})" if told else ""


def amount(key: str, value: float) -> str:
    """A limit of a budget, by its key there."""
    if key == "trials":
        return count(int(value), "trial")
    return duration(value) if key == "wall_clock" else metric(f"cost/{key}", value)


def count(number: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Seconds as 4s, 1m 05s or 2h 10m."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
