"""Commands that take a trial to production: export, train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweep_platform import units
from sweep_platform.cli.app import app, examples, progress_lines
from sweep_platform.cli.choose import Knee, MaxCost, MinAccuracy, Promotable, Trial, selected
from sweep_platform.errors import BadInput, Fault
from sweep_platform.home import Home

if TYPE_CHECKING:
    from sweep_platform.production.document import ProductionFile
    from sweep_platform.trainers import StepMetrics


@app.command(
    epilog=examples(
        "platform export aime --knee --out best.yaml",
        "platform export aime --trial 7 --out best.yaml",
        "platform export aime@1 --max-cost 1e12 --out cheap.yaml",
        "platform export production --out best.yaml",
    )
)
def export(
    sweep: Promotable,
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    trial: Trial = None,
    knee: Knee = False,
    max_cost: MaxCost = None,
    min_accuracy: MinAccuracy = None,
    to: Annotated[str, typer.Option(help="Form of the config.")] = "dapo",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a trial's config as a production file, with where it came from."""
    from sweep_platform.production import export as write

    with Home.locate().ledger() as ledger:
        one = selected(ledger, sweep, "export", trial=trial, knee=knee, max_cost=max_cost, min_accuracy=min_accuracy)
        path = write(ledger, one.address, one.number, out, to=to, force=force)
    typer.echo(f"trial {one.number} of {one.address} written to {path}")
    typer.echo(f"next: platform train {path}")


@app.command(
    epilog=examples(
        "platform train best.yaml",
        "platform train production",
        "platform train best.yaml trainer.total_training_steps=60 --name longer",
    )
)
def train(
    what: Annotated[
        str,
        typer.Argument(metavar="FILE|ALIAS", help="A production file, as export writes it; or what was promoted as."),
    ],
    overrides: Annotated[list[str] | None, typer.Argument(help="dotted.key=value, as in Hydra.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run and its folder; by default the file's, or SWEEP-VERSION-TRIAL.")
    ] = None,
) -> None:
    """Train a chosen config to its end as a production run; the same command resumes it."""
    import logging

    from sweep_platform.cli.running import Warnings
    from sweep_platform.production import run_production

    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[Warnings()])
    home = Home.locate()
    file, run_name = _promoted(home, what)
    result = run_production(
        Path(what),
        overrides or (),
        home=home,
        file=file,
        name=name or run_name,
        progress=progress_lines(),
        on_step=lambda step: typer.echo(_step_line(step)),
        warn=lambda line: typer.echo(line, err=True),
    )
    told = "was finished before" if result.finished_before else "finished"
    typer.echo(f"run {result.name} {told} after {result.steps} steps")
    if result.accuracy is not None:
        error, drawn = result.accuracy_se, units.sampling(result.metrics)
        typer.echo(f"{result.metric}: {units.accuracy(result.accuracy, error)}{drawn}")
    typer.echo(f"checkpoints: {result.folder}")


def _promoted(home: Home, what: str) -> tuple[ProductionFile | None, str | None]:
    """What is promoted under a name, as a file would say it, and what its run is called; nothing where it is a file.

    Raises:
        BadInput: it is neither, or both.
    """
    from sweep_platform.production.promotion import current, evidence_line, is_alias, promoted_file, unknown_alias

    if not is_alias(what):
        return None, None
    is_file = Path(what).is_file()
    if is_file and not home.has_ledger:
        return None, None
    with home.ledger() as ledger:
        held = current(ledger, what)
        if held is None and is_file:
            return None, None
        if held is None:
            fault = unknown_alias(ledger, what, "train")
            raise BadInput([replace(fault, need=f"a production file, or {fault.need}")])
        if is_file:
            do = f"write ./{what} for the file, or rename it for the promotion"
            raise BadInput([Fault("train", f"{what!r}, a file and the alias of a promotion", "one of them", do)])
        file = promoted_file(ledger, held)
    record = held.record
    typer.echo(f"{what}: {held.title}, promoted {record.at:%Y-%m-%d} by {record.who} ({evidence_line(record)})")
    return file, held.run_name


def _step_line(step: StepMetrics) -> str:
    scalars = step.metrics
    parts = [f"step {step.step}/{step.total_steps}"]
    if "val/accuracy" in scalars:
        parts.append(f"accuracy {units.accuracy(scalars['val/accuracy'], scalars.get('val/accuracy_se'))}")
        parts[-1] += units.sampling(scalars)
    if "reward/acc_mean" in scalars:
        parts.append(f"training accuracy {scalars['reward/acc_mean']:.3f}")
    if "filter/yield" in scalars:
        parts.append(f"yield {scalars['filter/yield']:.2f}")
    if "perf/throughput" in scalars:
        parts.append(units.si(scalars["perf/throughput"], "tokens/s"))
    return ", ".join(parts)
