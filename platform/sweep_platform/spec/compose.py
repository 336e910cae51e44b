"""From YAML files and dotted overrides to one plain tree, by Hydra, with every failure as faults.

A spec's groups (`model`, `data`, `hardware`) are found beside the spec, then among the packaged presets.
An override of a key that the file doesn't write is taken (Hydra would ask for a `+`): unknown keys are caught
later, with a suggestion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec.faults import OVERRIDE
from sweep_platform.spec.groups import GROUPS, group_file, presets_dir
from sweep_platform.spec.overrides import Overrides, first_line
from sweep_platform.spec.paths import is_under

if TYPE_CHECKING:
    from hydra.errors import MissingConfigException

_MAX_BYTES = 1_000_000
"""Larger files are no specs."""
_MAX_DEPTH, _MAX_NODES = 50, 20_000


@dataclass(slots=True)
class Composed:
    """A composed spec, not yet checked."""

    path: Path
    tree: dict[str, Any]
    """Plain, interpolations resolved."""
    choices: dict[str, Path] = field(default_factory=dict)
    """Group -> the file that was picked."""
    overridden: frozenset[str] = frozenset()
    """Dotted keys that came from the command line."""

    def where(self, key: str) -> str:
        """`file:key` of the place where the user wrote `key`."""
        if any(is_under(key, over) or is_under(over, key) for over in self.overridden):
            return f"{OVERRIDE}{key}"
        group, _, rest = key.partition(".")
        written = read_yaml(self.path)
        if group in self.choices and not _has(written, key):
            return f"{shown(self.choices[group])}:{rest or group}"
        return f"{shown(self.path)}:{key}"


def shown(path: Path) -> str:
    """A path as short as it can be: relative to the current folder where it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _has(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(tree, Mapping) or part not in tree:
            return False
        tree = tree[part]
    return True


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML mapping, duplicate keys refused.

    Raises:
        BadInput: missing, a folder, not text, empty, or not YAML; with line and column.
    """
    from omegaconf._utils import get_yaml_loader

    where = shown(path)
    data = _read_bytes(path, where)
    try:
        tree = yaml.load(data.decode("utf-8"), Loader=get_yaml_loader())
    except UnicodeDecodeError as error:
        got = f"byte 0x{data[error.start]:02x} at {error.start}"
        raise BadInput([Fault(where, got, "UTF-8 text", "name a YAML file")]) from error
    except (yaml.YAMLError, RecursionError, ValueError, TypeError) as error:
        raise BadInput([yaml_fault(error, where)]) from error
    _check_size(tree, where)
    if tree is None:
        raise BadInput([Fault(where, "an empty file", "a sweep spec", "start from sweeps/aime.yaml")])
    need = "a mapping of names to values"
    if not isinstance(tree, dict):
        raise BadInput([Fault(where, type(tree).__name__, need, "write key: value lines")])
    if strange := [key for key in tree if not isinstance(key, str)]:
        raise BadInput([Fault(where, f"the key {strange[0]!r}", need, "write a name, or quote it")])
    return tree


def _read_bytes(path: Path, where: str) -> bytes:
    try:
        if path.is_dir():
            raise BadInput([Fault(where, "a folder", "a .yaml file", "name a file in it")])
        if not path.is_file():
            near = sorted(file.stem for file in path.parent.glob("*.yaml"))
            do = f"there are {near}" if near else "check the path"
            raise BadInput([Fault(where, "no such file", "a .yaml file", do)])
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput([Fault(where, reason, "a file that can be read", "check path and permissions")]) from error
    if len(data) > _MAX_BYTES:
        raise BadInput([Fault(where, f"{len(data)} bytes", f"at most {_MAX_BYTES}", "name a sweep spec")])
    return data


def _check_size(tree: Any, where: str) -> None:
    """Refuse aliases that lead back to themselves or multiply: a tree larger than any spec."""
    todo, seen = [(tree, 0)], 0
    while todo:
        node, depth = todo.pop()
        seen += 1
        if depth > _MAX_DEPTH or seen > _MAX_NODES:
            need = f"at most {_MAX_DEPTH} levels and {_MAX_NODES} values, aliases counted"
            raise BadInput([Fault(where, "a larger or an endless tree", need, "write values instead of aliases")])
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        todo += [(child, depth + 1) for child in children]


def yaml_fault(error: Exception, where: str) -> Fault:
    """A YAML error as a fault with line and column."""
    mark = getattr(error, "problem_mark", None)
    place = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
    problem = getattr(error, "problem", None) or first_line(error)
    return Fault(place, str(problem).rstrip(), "valid YAML, each key once", "correct this line")


def compose(path: Path, overrides: Sequence[str]) -> Composed:
    """Compose the spec in `path` under Hydra's overrides.

    Raises:
        BadInput: with every fault that can be seen at this stage.
    """
    path = path.absolute()
    written = read_yaml(path)
    if "hydra" in written:
        need = "a spec; Hydra's own settings have no effect here"
        raise BadInput([Fault(f"{shown(path)}:hydra", repr(written["hydra"])[:80], need, "take it out")])
    if "provenance" in written and "search" not in written:
        raise BadInput(
            [Fault(shown(path), "a production file", "a sweep spec", f"run it with platform train {shown(path)}")]
        )
    if path.suffix != ".yaml":
        raise BadInput([Fault(shown(path), f"suffix {path.suffix!r}", ".yaml", "rename the file")])
    folders = [path.parent, presets_dir()]
    defaults = _defaults(written, shown(path))
    parsed = Overrides(folders, frozenset(defaults))
    parsed.read(overrides)
    if parsed.faults:
        raise BadInput(parsed.faults)
    for group, picked in (defaults | parsed.picked).items():
        read_yaml(group_file(folders, group, picked, f"{shown(path)}:defaults.{group}"))
    tree = _hydra(path, folders[1], parsed)
    result = Composed(path, tree, overridden=parsed.keys)
    parsed.apply_search(tree)
    for group in GROUPS:
        choice = tree[group] if isinstance(tree.get(group), str) else (defaults | parsed.picked).get(group)
        if choice is not None:
            result.choices[group] = group_file(folders, group, choice, result.where(group))
        if isinstance(tree.get(group), str):
            tree[group] = read_yaml(result.choices[group])
    return result


def _defaults(written: Mapping[str, Any], where: str) -> dict[str, str]:
    """The groups in a spec's defaults list: `- model: tiny`."""
    entries = written.get("defaults", [])
    if not isinstance(entries, list):
        raise BadInput([Fault(f"{where}:defaults", repr(entries), "a list such as [{model: tiny}]", "write a list")])
    if entries and "_self_" not in entries:
        need = "`_self_` among them: its place says whether the file or its groups win"
        raise BadInput([Fault(f"{where}:defaults", repr(entries), need, "add `- _self_` as the last entry")])
    picked = {}
    for entry in entries:
        if isinstance(entry, Mapping):
            for key, choice in entry.items():
                group = str(key).removeprefix("override ").removeprefix("optional ").strip("/ ")
                if not group:
                    need = "the name of a group before its choice, such as {model: tiny}"
                    raise BadInput([Fault(f"{where}:defaults", repr(entry), need, "name one, or take it out")])
                if group in GROUPS and isinstance(choice, str):
                    picked[group] = choice
    return picked


def _hydra(path: Path, presets: Path, overrides: Overrides) -> dict[str, Any]:
    """Hydra's composition, as a plain tree."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException, MissingConfigException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    search_path = [] if presets == path.parent else [f"hydra.searchpath=[{_quoted(f'file://{presets}')}]"]
    where = shown(path)
    try:
        with initialize_config_dir(str(path.parent), version_base="1.3"):
            config = hydra_compose(path.stem, overrides=[*search_path, *overrides.hydra])
        overrides.apply(config)
        tree = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except yaml.YAMLError as error:
        raise BadInput([yaml_fault(error, where)]) from error
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None)
        place = f"{where}:{key}" if key else where
        fault = Fault(
            place, first_line(error), "a value that resolves", "write the value, or name a key of the spec in ${...}"
        )
        raise BadInput([fault]) from error
    except MissingConfigException as error:
        need = "a spec of its folder, or a choice of a group: model, data, hardware"
        do = "name one that exists, as in [{model: tiny}, _self_]"
        raise BadInput([Fault(f"{where}:defaults", _missing(error), need, do)]) from error
    except RecursionError as error:
        fault = Fault(f"{where}:defaults", "an entry that leads back to this file", "other files", "take it out")
        raise BadInput([fault]) from error
    except (HydraException, ValueError, OSError, AssertionError) as error:  # Hydra asserts what it was given
        raise BadInput(
            [Fault(where, _hydra_message(error), "a spec that Hydra composes", "rewrite what it names")]
        ) from error
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def _quoted(text: str) -> str:
    """A string in Hydra's override language."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _missing(error: MissingConfigException) -> str:
    """The entry of a defaults list that Hydra did not find."""
    return repr(error.missing_cfg_file) if error.missing_cfg_file else _hydra_message(error)


def _hydra_message(error: Exception) -> str:
    """What Hydra says, on one line."""
    told = str(error).partition("Config search path")[0]
    return " ".join(told.split())[:300] or type(error).__name__
