"""Known-good candidates: files of `dotted.path: value`, inline mappings, or `base`, the base config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec.compose import read_yaml, shown
from sweep_platform.spec.domains import Domain
from sweep_platform.spec.faults import Where, show
from sweep_platform.spec.paths import did_you_mean, flatten

BASE = "base"


def read_priors(
    entries: Any,
    folders: Sequence[Path],
    *,
    domains: Mapping[str, Domain],
    known: frozenset[str],
    base: Mapping[str, Any] | None,
    where: Where,
    faults: list[Fault],
) -> list[dict[str, Any]]:
    """The priors of a spec, their files read and their values checked against the search space.

    Args:
        entries: what stands under `priors`.
        folders: where prior files are looked for, in order.
        domains: the search space.
        known: every path of the trainer's config; empty if there is no trainer.
        base: the base config in full; its values fill what a prior leaves out, where the domain has them.
        where: places keys.
        faults: gets what is wrong.
    """
    if entries is None:
        return []
    if not isinstance(entries, list):
        faults.append(Fault(where("priors"), show(entries), "a list of names or mappings", "write [name, ...]"))
        return []
    values = {} if base is None else flatten(base)
    defaults = {path: values[path] for path, d in domains.items() if path in values and d.contains(values[path])}
    priors: list[dict[str, Any]] = []
    for index, entry in enumerate(entries):
        key = f"priors.{index}"
        name, place, params = _entry(entry, index, folders, where(key), faults)
        if name in [prior["name"] for prior in priors]:
            faults.append(Fault(where(key), repr(name), "each prior once", "take the double out"))
        else:
            inside, ignored = _split(params, place, domains, known, faults)
            priors.append({"name": name, "params": {**defaults, **inside}, "ignored": ignored})
    return priors


def _entry(
    entry: Any, index: int, folders: Sequence[Path], where: str, faults: list[Fault]
) -> tuple[str, str, dict[str, Any]]:
    """Name, place and values of one entry."""
    if entry == BASE:
        return BASE, where, {}
    if isinstance(entry, Mapping):
        return f"inline-{index}", where, {str(key): value for key, value in entry.items()}
    if not isinstance(entry, str):
        faults.append(
            Fault(where, show(entry), "a name or a mapping of paths to values", "write it like {rollout.n: 8}")
        )
        return f"inline-{index}", where, {}
    available = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")} | {BASE})
    for folder in folders:
        file = folder / f"{entry}.yaml"
        if entry in available and file.is_file():
            try:
                return entry, shown(file), read_yaml(file)
            except BadInput as error:
                faults += error.faults
                return entry, where, {}
    faults.append(Fault(where, repr(entry), f"one of {available}", did_you_mean(entry, available, "name one of them")))
    return entry, where, {}


def _split(
    params: Mapping[str, Any],
    place: str,
    domains: Mapping[str, Domain],
    known: frozenset[str],
    faults: list[Fault],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values of searched paths, and the rest."""
    inside: dict[str, Any] = {}
    ignored: dict[str, Any] = {}
    for path, value in flatten(params).items():
        domain = domains.get(path)
        if domain is None:
            ignored[path] = value
            if known and path not in known:
                advice = did_you_mean(path, sorted(known), "remove it, or name a field of the config")
                faults.append(Fault(f"{place}:{path}", f"unknown path {path!r}", "a field of the config", advice))
        elif domain.contains(value):
            inside[path] = domain.canonical(value)
        else:
            faults.append(Fault(f"{place}:{path}", show(value), f"{domain}, as search says", "change one of them"))
    return inside, ignored
