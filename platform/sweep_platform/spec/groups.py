"""Config groups: folders of YAML files beside a spec, or among the packaged presets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sweep_platform.errors import BadInput, Fault
from sweep_platform.spec.faults import show

GROUPS = ("model", "data", "hardware")


def presets_dir() -> Path:
    """The packaged presets: inside the wheel, or `sweeps/` of a source checkout."""
    package = Path(__file__).resolve().parents[1]
    packaged = package / "presets"
    return packaged if packaged.is_dir() else package.parents[1] / "sweeps"


def group_file(folders: Sequence[Path], group: str, choice: str, where: str) -> Path:
    """The file of one choice of a group, in the first folder that has it.

    Raises:
        BadInput: there is none; the fault stands at `where` and names the choices that there are.
    """
    files = {file.stem: file for folder in reversed(folders) for file in (folder / group).glob("*.yaml")}
    if (found := files.get(choice.removesuffix(".yaml"))) is not None:
        return found
    do = "set model.path to a folder" if group == "model" else f"write the keys of {group} yourself"
    raise BadInput([Fault(where, show(choice), f"one of {sorted(files)}", f"name one of these, or {do}")])
