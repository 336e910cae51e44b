"""Commands on promotions: promote, promotions, rollback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.choose import Knee, MaxCost, MinAccuracy, Promotable, Trial, selected
from sweep_platform.cli.explore import AsJson
from sweep_platform.errors import BadInput
from sweep_platform.home import Home

if TYPE_CHECKING:
    from run_ledger import Ledger, PromotionRecord

    from sweep_platform.production.promotion import Promoted

As = Annotated[str, typer.Option("--as", help="The alias that stands for the trial from now on.")]
Why = Annotated[str, typer.Option("--why", "-m", help="The reason, for whoever reads the history.")]
By = Annotated[str | None, typer.Option(help="Who decides so; user@host by default.")]


@app.command(
    epilog=examples(
        "platform promote aime --knee --as production",
        'platform promote aime --trial 7 --as production -m "half the cost for one point of accuracy"',
        "platform promote staging --as production",
        "platform train production",
    )
)
def promote(
    sweep: Promotable,
    *,
    alias: As = "production",
    trial: Trial = None,
    knee: Knee = False,
    max_cost: MaxCost = None,
    min_accuracy: MinAccuracy = None,
    why: Why = "",
    by: By = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="Though only the search's own run speaks for it. It is marked so.")
    ] = False,
) -> None:
    """Make a confirmed trial what an alias stands for: recorded with who, when, why and the evidence, and in MLflow."""
    from sweep_platform.production.promotion import check_alias, current, evidence_line, user_at_host
    from sweep_platform.production.promotion import promote as record_promotion

    check_alias(alias)
    home = Home.locate()
    with home.ledger() as ledger:
        one = selected(ledger, sweep, "promote", trial=trial, knee=knee, max_cost=max_cost, min_accuracy=min_accuracy)
        before = current(ledger, alias)
        who = by or user_at_host()
        new = record_promotion(
            ledger, one.address, one.number, alias=alias, who=who, why=why, rule=one.rule, unconfirmed=unconfirmed
        )
        record = new.record
        told = f"{alias}: {new.title}, {_values(record)} ({evidence_line(record)})"
        if before is not None and before.record == record:
            typer.echo(f"{told}; it was that already, by {record.who} since {_when(record)} ({record.why})")
        else:
            typer.echo(told)
            if before is not None:
                typer.echo(f"before: {before.title}, promoted {_when(before.record)} by {before.record.who}")
        if not record.evidence.get("on_front", True):
            typer.echo(f"note: other points beat it; see platform pareto {one.address}", err=True)
        _show_in_mlflow(ledger, home, new)
    typer.echo(f"next: platform train {alias}")


@app.command(
    epilog=examples(
        "platform rollback",
        'platform rollback --as production -m "diverges after step 400"',
        "platform rollback --to 3",
    )
)
def rollback(
    alias: As = "production",
    to: Annotated[int | None, typer.Option(help="A promotion's number in the history, earlier or later.")] = None,
    why: Why = "",
    by: By = None,
) -> None:
    """Go back to the trial that an alias stood for before, or to one of its history; recorded like a promotion."""
    from sweep_platform.production.promotion import check_alias, evidence_line, roll_back, user_at_host

    check_alias(alias)
    home = Home.locate()
    with home.ledger() as ledger:
        old, new = roll_back(ledger, alias, to=to, who=by or user_at_host(), why=why)
        typer.echo(f"{alias}: {new.title} again, {_values(new.record)} ({evidence_line(new.record)})")
        typer.echo(f"before: {old.title}, promoted {_when(old.record)} by {old.record.who}")
        _show_in_mlflow(ledger, home, new)
    typer.echo(f"next: platform train {alias}")


@app.command(epilog=examples("platform promotions", "platform promotions production --json"))
def promotions(
    alias: Annotated[str | None, typer.Argument(help="One alias; without it, all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what was promoted, when, by whom and why, and what each alias stands for now."""
    from sweep_platform.production.promotion import named, unknown_alias

    with Home.locate().ledger() as ledger:
        history = [named(ledger, record) for record in ledger.promotions(alias)]
        if alias is not None and not history:
            raise BadInput([unknown_alias(ledger, alias, "promotions")])
    current = {each.record.alias: each.record.id for each in history}
    if as_json:
        echo_json({"current": current, "promotions": [_json(each) for each in history]})
        return
    if not history:
        typer.echo("nothing was promoted yet; platform promote SWEEP --knee does")
        return
    table = Table("#", "alias", "trial", "measured", "evidence", "when", "by", "why")
    for each in history:
        table.add_row(*_row(each, now=current[each.record.alias] == each.record.id))
    console().print(table)


def _row(each: Promoted, *, now: bool) -> tuple[str, ...]:
    from sweep_platform.production.promotion import evidence_line

    record = each.record
    back = f"back to {record.restores}: " if record.restores else ""
    why = record.why if record.why != f"back to promotion {record.restores}" else ""
    cells = (
        str(record.id),
        f"{record.alias} (now)" if now else record.alias,
        f"{each.sweep.address} {each.trial.number}",
        _values(record),
        evidence_line(record),
        _when(record),
        record.who,
        f"{back}{why}".removesuffix(": "),
    )
    return tuple(escape(cell) for cell in cells)


def _json(each: Promoted) -> dict[str, Any]:
    record = each.record
    return {
        "id": record.id,
        "alias": record.alias,
        "sweep": each.sweep.address,
        "trial": each.trial.number,
        "who": record.who,
        "why": record.why,
        "at": record.at.isoformat(timespec="seconds"),
        "confirmed": record.confirmed,
        "previous": record.previous,
        "restores": record.restores,
        "evidence": dict(record.evidence),
    }


def _values(record: PromotionRecord) -> str:
    values, errors = record.evidence.get("values", {}), record.evidence.get("errors", {})
    return ", ".join(f"{name} {units.metric(name, value, errors.get(name))}" for name, value in values.items()) or "-"


def _when(record: PromotionRecord) -> str:
    return f"{record.at:%Y-%m-%d %H:%M} UTC"


def _show_in_mlflow(ledger: Ledger, home: Home, new: Promoted) -> None:
    """Bring MLflow's registry up to date; if it can't be written, nothing is lost."""
    from sweep_platform.tracking import Store, register

    try:
        shown = register(ledger, Store(home.mlflow_uri, home.artifacts), home)[new.trial.id]
    except BadInput as error:
        typer.echo(f"recorded, but MLflow doesn't show it: {error}", err=True)
        typer.echo(f"once that is well, platform mlflow sync {new.sweep.address} writes it", err=True)
        return
    typer.echo(f"MLflow: models:/{shown.name}@{new.record.alias} (version {shown.version}); weights {shown.weights}")
