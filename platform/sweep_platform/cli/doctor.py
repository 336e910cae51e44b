"""The command doctor: what is wrong with a sweep or a run, by what was recorded, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.explore import AsJson
from sweep_platform.errors import BadInput, Fault, LedgerRefused
from sweep_platform.home import Home, find_sweep

if TYPE_CHECKING:
    from sweep_platform.doctor import Diagnosis

NAMED = 8
"""Trials that are named; of more the number is told."""


@app.command(epilog=examples("platform doctor aime", "platform doctor aime --trial 3", "platform doctor best"))
def doctor(
    name: Annotated[str, typer.Argument(help="A sweep, or a run of `platform train`.")],
    trial: Annotated[int | None, typer.Option(help="One trial of the sweep.")] = None,
    run: Annotated[bool, typer.Option("--run", help="The run, where a sweep has the same name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what is wrong with a sweep or a run, with the figures that show it, and what to change first."""
    home = Home.locate()
    if run and trial is not None:
        raise BadInput([Fault("--trial", str(trial), "a sweep: a run has no trials", "leave it or --run out")])
    if run or (trial is None and not _is_sweep(home, name) and _run_folder(home, name) is not None):
        title, found = _run(home, name)
    else:
        title, found = _sweep(home, name, trial)
    if as_json:
        echo_json({"examined": title, "findings": [each.to_json() for each in found]})
        return
    _show(title, found)


def _is_sweep(home: Home, name: str) -> bool:
    """Whether there is a sweep of that name."""
    try:
        with home.ledger() as ledger:
            return ledger.find_sweep(name) is not None
    except LedgerRefused:  # which a sweep's own search tells, if there is no run either
        return False


def _run_folder(home: Home, name: str) -> Path | None:
    """Where the record of a run of that name lies; None if there is none."""
    folder = home.run_dir(name)
    return folder if Path(name).name == name and (folder / "run.json").exists() else None


def _run(home: Home, name: str) -> tuple[str, list[Diagnosis]]:
    from sweep_platform.doctor import examine_run
    from sweep_platform.production.journal import Journal

    folder = _run_folder(home, name)
    if folder is None:
        raise BadInput([Fault("run", repr(name), "a run of platform train", f"check the name in {home.run_dir('')}")])
    journal = Journal(folder)
    if "trainer" not in journal.head:
        need, do = "one with its trainer's name, as this version writes it", "run its platform train again"
        raise BadInput([Fault(str(folder / "run.json"), "an earlier version's record", need, do)])
    return f"run {name}", examine_run(journal)


def _sweep(home: Home, name: str, trial: int | None) -> tuple[str, list[Diagnosis]]:
    from sweep_platform.doctor import examine_sweep

    with home.ledger() as ledger:
        record = find_sweep(ledger, name)
        numbers = [each.number for each in ledger.outline(record.id)]
        if trial is not None and trial not in numbers:
            need = f"one of 0 to {max(numbers)}" if numbers else "a sweep with trials"
            raise BadInput([Fault("--trial", str(trial), need, f"see platform status {name}")])
        title = f"sweep {record.address}" + (f", trial {trial}" if trial is not None else "")
        return title, examine_sweep(ledger, record, trial)


def _show(title: str, found: Sequence[Diagnosis]) -> None:
    if not found:
        typer.echo(f"{title}: nothing found")
        return
    typer.echo(f"{title}: {len(found)} {'finding' if len(found) == 1 else 'findings'}, what to see to first at the top")
    for place, each in enumerate(found, 1):
        where = ""
        if each.trials:
            few = len(each.trials) <= NAMED
            where = f"trials {', '.join(map(str, each.trials))}" if few else f"{len(each.trials)} trials"
            where = f" ({where})" if len(each.trials) > 1 else f" (trial {each.trials[0]})"
        console().print(Text(f"\n{place}. {each.name}", style="bold") + Text(where, style="not bold"))
        of = f" (trial {each.trials[0]})" if len(each.trials) > 1 else ""
        console().print(Text(f"   {each.evidence}{of}"))
        for advice in each.advice:
            console().print(Text(f"   - {advice}"))
