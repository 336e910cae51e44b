"""Commands on models: fetching one, and its supervised warm start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sweep_platform import units
from sweep_platform.cli.app import INTERRUPTED, app, examples, progress_lines
from sweep_platform.errors import BadInput, Fault, PlatformError
from sweep_platform.trainers import load_model_trainer

model = typer.Typer(no_args_is_help=True, help="Models, by name.")
app.add_typer(model, name="model")

Trainer = Annotated[str, typer.Option("--trainer", help="Whose models.")]


@model.command(
    epilog=examples("platform model fetch smollm2-135m", "platform model fetch Qwen/Qwen2.5-0.5B --revision main")
)
def fetch(
    name: Annotated[str, typer.Argument(help="tiny, smollm2-135m, or the id owner/name of a model on the hub.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")] = None,
    trainer: Trainer = "dapo",
) -> None:
    """Download or make a model, check it, and keep it for `model.path`. Once per machine."""
    source = load_model_trainer(trainer)
    try:
        folder = source.fetch_model(name, revision=revision, progress=progress_lines())
    except Exception as error:
        if faults := getattr(error, "faults", None):
            raise BadInput([Fault(f.key, f.got, f.need, f.do) for f in faults]) from error
        raise PlatformError(" ".join(str(error).split()) or type(error).__name__) from error
    typer.echo(f"{name}: in {folder}")
    typer.echo(f"next: model.path={name}" + (f" model.revision={revision}" if revision else ""))


@app.command(
    epilog=examples(
        "platform warmstart model.path=smollm2-135m data.train=train.jsonl data.val=val.jsonl --out warm",
        "platform warmstart best.yaml warmstart.share=0.2 warmstart.lr=1e-4 --out warm",
        "Settings: warmstart.share, epochs, steps, batch_size, lr, max_token_len, field, template.",
    )
)
def warmstart(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[FILE] [OVERRIDES]...",
            help="A production file, as export writes it, and dotted.key=value as in Hydra; or these alone.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, for model.path.")],
    trainer: Annotated[str, typer.Option(help="The trainer, where no file names it.")] = "dapo",
) -> None:
    """Teach a model its training problems' solutions before reinforcement, and measure it before and after."""
    from sweep_platform.production import run_warmstart

    file = None if "=" in arguments[0] else Path(arguments[0])
    overrides = arguments if file is None else arguments[1:]
    try:
        found = run_warmstart(file, overrides, out=out, trainer=trainer, progress=progress_lines())
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was written, the same command starts over", err=True)
        raise typer.Exit(INTERRUPTED) from None
    typer.echo(f"{found.examples} problems taught in {found.steps} updates, {found.solutions} of them with a solution")
    if found.left_out:
        typer.echo(f"left out for being validation problems too: {found.left_out}")
    typer.echo(f"val/accuracy: {_accuracy(found.before)} before, {_accuracy(found.after)} after")
    typer.echo(f"next: model.path={found.folder}")


def _accuracy(metrics: Mapping[str, float]) -> str:
    return units.accuracy(metrics["val/accuracy"], metrics.get("val/accuracy_se"))
