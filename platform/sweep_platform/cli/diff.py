"""The command diff: two configs side by side."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.explore import AsJson
from sweep_platform.errors import BadInput, Fault, printable
from sweep_platform.home import Home

if TYPE_CHECKING:
    from sweep_platform.production.compare import Side

WIDTH = 60
"""Characters of a value that are shown; of two long ones, those from shortly before where they differ."""


@app.command(
    epilog=examples(
        "platform diff production aime:12",
        "platform diff aime@1:3 aime@2:7 --all",
        "platform diff best.yaml sweeps/aime.yaml --json",
        "The exit code is 0 whether they differ or not.",
    )
)
def diff(
    a: Annotated[str, typer.Argument(help="A production file, SWEEP:TRIAL, the alias of a promotion, or a spec.")],
    b: Annotated[str, typer.Argument(help="Another.")],
    as_json: AsJson = False,
    every: Annotated[bool, typer.Option("--all", help="Also what is the same in both.")] = False,
) -> None:
    """Show two configs side by side: what differs, and what is known of the accuracy and cost of each."""
    from sweep_platform.production.compare import alike, differences, side_of

    sides: list[Side] = []
    faults: list[Fault] = []
    for text in (a, b):
        try:
            sides.append(side_of(Home.locate(), text))
        except BadInput as error:
            faults += error.faults
    if faults:
        raise BadInput(dict.fromkeys(faults))
    one, other = sides
    changed, same = differences(one, other), alike(one, other)
    if as_json:
        echo_json(_json(one, other, changed, same if every else None))
        return
    table = Table("", *(Column(escape(side.title), overflow="fold") for side in sides))
    for name in {**one.measured, **other.measured}:
        table.add_row(name, *(_measured(side, name) for side in sides))
    if one.basis or other.basis:
        table.add_row("measured by", one.basis or "-", other.basis or "-")
    table.add_section()
    for path, pair in changed.items():
        table.add_row(path, *(Text(shown, overflow="fold") for shown in _shown(*pair)))
    if every:
        table.add_section()
        for path, value in same.items():
            table.add_row(*(Text(shown, style="dim", overflow="fold") for shown in (path, *_shown(value, value))))
    console().print(table)
    rest = "" if every else f"; --all shows the {len(same)} that are the same"
    typer.echo(f"{len(changed) or 'no'} {'setting differs' if len(changed) == 1 else 'settings differ'}{rest}")


def _json(one: Side, other: Side, changed: dict[str, tuple[Any, Any]], same: dict[str, Any] | None) -> dict[str, Any]:
    from sweep_platform.production.compare import ABSENT

    def side(of: Side, place: int) -> dict[str, Any]:
        return {
            "title": of.title,
            "measured": {name: {"value": value, "error": error} for name, (value, error) in of.measured.items()},
            "basis": of.basis,
            "config": {path: pair[place] for path, pair in changed.items() if pair[place] is not ABSENT},
        }

    told: dict[str, Any] = {"differing": list(changed), "a": side(one, 0), "b": side(other, 1)}
    return told if same is None else told | {"same": same}


def _measured(side: Side, name: str) -> str:
    if name not in side.measured:
        return "-"
    value, error = side.measured[name]
    return units.metric(name, value, error)


def _shown(one: Any, other: Any) -> tuple[str, str]:
    """Two values as a person reads them."""
    a, b = _text(one), _text(other)
    first = next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    start = first - WIDTH // 3 if a != b and max(len(a), len(b)) > WIDTH and first > WIDTH // 2 else 0
    return _cut(a, start), _cut(b, start)


def _text(value: Any) -> str:
    from sweep_platform.production.compare import ABSENT

    if value is ABSENT:
        return "-"
    return printable(value if isinstance(value, str) else json.dumps(value, default=str))


def _cut(text: str, start: int) -> str:
    kept = f"…{text[start:]}" if start and len(text) > start else text
    return kept if len(kept) <= WIDTH else f"{kept[: WIDTH - 1]}…"
