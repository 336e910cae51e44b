"""Command-line overrides, in Hydra's language, sorted by what they reach.

Hydra picks the choices of groups. Values are set in what it composed: so a key need not stand in the file
(an unknown one is caught later, with a suggestion, where Hydra would ask for a `+`), and a folder that is
called like a key doesn't make a group of it. Keys under `search` hold dots themselves, as in
`search.actor.clip_ratio_low.float=[0.1,0.2]` and `~search.actor.clip_ratio_low`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec.groups import GROUPS, group_file

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig

_SEARCH = "search."


def first_line(error: Exception) -> str:
    """The first line of an error that says something."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def parse(text: str) -> Override:
    """One override, as Hydra reads it: one key and one value.

    Raises:
        BadInput: it is neither `key=value` nor `~key`, or has several values.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    where = f"override {text!r}"
    try:
        override = OverridesParser.create().parse_override(text)
        if not override.key_or_group or override.package is not None:
            raise HydraException(f"the key {text.partition('=')[0]!r}")
    except HydraException as error:
        need, do = "key=value as in Hydra, e.g. budget.trials=4", "quote what is special: 'key=\"a b\"'"
        raise BadInput([Fault(where, first_line(error).removesuffix("."), need, do)]) from error
    if override.is_sweep_override():
        raise BadInput([Fault(where, "several values", "one value", "put the values under search: {choice: [...]}")])
    return override


@dataclass(frozen=True, slots=True)
class _Change:
    """One key to set or to take out."""

    where: str
    key: str
    value: Any
    delete: bool


@dataclass(slots=True)
class Overrides:
    """The overrides of one command line."""

    folders: list[Path]
    """Where group files are looked for."""
    groups_in_defaults: frozenset[str]
    """Groups that the spec's defaults list names; Hydra can pick another choice for those only."""
    hydra: list[str] = field(default_factory=list)
    """What Hydra is given: choices of groups."""
    picked: dict[str, str] = field(default_factory=dict)
    """Group -> choice."""
    faults: list[Fault] = field(default_factory=list)
    """What is wrong with the overrides themselves."""
    _values: list[_Change] = field(default_factory=list)
    _search: list[_Change] = field(default_factory=list)

    @property
    def keys(self) -> frozenset[str]:
        """The dotted keys that were set."""
        return frozenset([*(c.key for c in self._values), *(f"{_SEARCH}{c.key}" for c in self._search)])

    def read(self, texts: Sequence[str]) -> None:
        """Parse and sort `texts`."""
        for text in texts:
            try:
                self._sort(text, parse(text))
            except BadInput as error:
                self.faults += error.faults

    def _sort(self, text: str, override: Override) -> None:
        key, value = override.key_or_group, override.value()
        change = _Change(f"override {text!r}", key, value, override.is_delete())
        if key.startswith(_SEARCH):
            self._search.append(replace(change, key=key.removeprefix(_SEARCH)))
        elif key == "model" and isinstance(value, str) and "/" in value:
            self._values.append(replace(change, key="model.path"))
        elif key in GROUPS and isinstance(value, str):
            group_file(self.folders, key, value, change.where)
            if key in self.groups_in_defaults:
                self.picked[key] = value
                self.hydra.append(f"{key}={text.partition('=')[2]}")
            else:
                self._values.append(change)
        else:
            self._values.append(change)

    def apply(self, config: DictConfig) -> None:
        """Set the values in a composed config that is not resolved yet.

        Raises:
            BadInput: one takes out a key that isn't there.
        """
        from omegaconf import OmegaConf

        for change in self._values:
            if not change.delete:
                OmegaConf.update(config, change.key, change.value, merge=True, force_add=True)
                continue
            parent, _, leaf = change.key.rpartition(".")
            section = OmegaConf.select(config, parent) if parent else config
            if not OmegaConf.is_dict(section) or leaf not in section:
                raise BadInput([Fault(change.where, "a key that is not there", "one of the file", "leave it out")])
            OmegaConf.set_struct(section, False)
            del section[leaf]

    def apply_search(self, tree: dict[str, Any]) -> None:
        """Set the search space's values in the composed, plain tree.

        Raises:
            BadInput: one takes out a parameter that isn't there.
        """
        search = tree.setdefault("search", {})
        for change in self._search if isinstance(search, dict) else ():
            found = [name for name in search if f"{change.key}.".startswith(f"{name}.")]
            path = max(found, key=len, default=None)
            if change.delete:
                if path != change.key:
                    need = f"one of {sorted(search)}"
                    raise BadInput([Fault(change.where, change.key, need, "name a searched path")])
                del search[path]
                continue
            path, part = (path, change.key[len(path) + 1 :]) if path else _new_path(change.key)
            if not part:
                search[path] = change.value
            elif isinstance(domain := search.setdefault(path, {}), dict):
                domain[part] = change.value


def _new_path(key: str) -> tuple[str, str]:
    """A path that isn't searched yet, and the key of its domain if the override names one."""
    path, _, part = key.rpartition(".")
    return (path, part) if part in ("choice", "float", "int") else (key, "")
