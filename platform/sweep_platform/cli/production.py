"""Commands that take a trial to production: export, train."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweep_platform import units
from sweep_platform.cli.app import app, examples, progress_lines
from sweep_platform.cli.choose import Knee, MaxCost, MinAccuracy, choose, frontier
from sweep_platform.cli.explore import Address
from sweep_platform.errors import BadInput, Fault
from sweep_platform.home import Home, find_sweep

if TYPE_CHECKING:
    from sweep_platform.trainers import StepMetrics


@app.command(
    epilog=examples(
        "platform export aime --knee --out best.yaml",
        "platform export aime --trial 7 --out best.yaml",
        "platform export aime@1 --max-cost 1e12 --out cheap.yaml",
    )
)
def export(
    sweep: Address,
    *,
    out: Annotated[Path, typer.Option(help="The file to write.")],
    trial: Annotated[int | None, typer.Option(help="A complete trial's number.")] = None,
    knee: Knee = False,
    max_cost: MaxCost = None,
    min_accuracy: MinAccuracy = None,
    to: Annotated[str, typer.Option(help="Form of the config.")] = "dapo",
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Write a trial's config as a production file, with where it came from."""
    from sweep_platform.production import export as write

    by_rule = knee or max_cost is not None or min_accuracy is not None
    if (trial is None) != by_rule:
        need = "one of --trial N, --knee, --max-cost X, --min-accuracy Y"
        got = "none" if trial is None else "--trial and another"
        raise BadInput([Fault("export", got, need, "say which trial")])
    with Home.locate().ledger() as ledger:
        find_sweep(ledger, sweep)
        why = f"--trial {trial}"
        if trial is None:
            found = frontier(ledger, sweep)
            trial = choose(found, knee=knee, max_cost=max_cost, min_accuracy=min_accuracy).number
            bounds = {"--max-cost": max_cost, "--min-accuracy": min_accuracy}
            why = " ".join(f"{name} {bound:g}" for name, bound in bounds.items() if bound is not None) or "--knee"
        path = write(ledger, sweep, trial, out, to=to, force=force, why=why)
    typer.echo(f"trial {trial} of {sweep} written to {path}")
    typer.echo(f"next: platform train {path}")


@app.command(
    epilog=examples(
        "platform train best.yaml", "platform train best.yaml trainer.total_training_steps=60 --name longer"
    )
)
def train(
    file: Annotated[Path, typer.Argument(help="A production file, as export writes it.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="dotted.key=value, as in Hydra.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run and its folder; the file's name by default.")
    ] = None,
) -> None:
    """Train a chosen config to its end as a production run; the same command resumes it."""
    from sweep_platform.production import run_production

    result = run_production(
        file,
        overrides or (),
        home=Home.locate(),
        name=name,
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
