"""The command that tells memory and time before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sweep_platform import units
from sweep_platform.cli.app import app, console, echo_json, examples
from sweep_platform.cli.explore import AsJson
from sweep_platform.cli.sweep import Overrides, Spec
from sweep_platform.errors import BadInput, Fault
from sweep_platform.estimates import estimating_trainer
from sweep_platform.spec import Choice, load_spec
from sweep_platform.trainers import load_trainer

if TYPE_CHECKING:
    from sweep_platform.estimates import LayoutEstimate
    from sweep_platform.spec import SweepSpec

GIB = 2**30


@app.command(
    epilog=examples(
        "platform estimate sweeps/aime.yaml",
        "platform estimate sweeps/aime.yaml --hardware a100x8 model=qwen2.5-7b data=dapo-math --response 3000",
        "platform estimate sweeps/aime.yaml --hardware h800x128 model=qwen2.5-32b --json",
        "Estimates, not measurements: see what was assumed below the table, and python -m benchmarks growth.",
    )
)
def estimate(
    spec: Spec,
    overrides: Overrides = None,
    *,
    hardware: Annotated[str | None, typer.Option(help="A preset of hardware: a100x8, h800x128, rtx-4090 …")] = None,
    response: Annotated[float | None, typer.Option(min=1, help="Tokens of a response, in the mean.")] = None,
    prompt: Annotated[float | None, typer.Option(min=1, help="Tokens of a prompt, in the mean.")] = None,
    kept: Annotated[float | None, typer.Option(min=0.01, max=1, help="Share of groups that the filter keeps.")] = None,
    spread: Annotated[float | None, typer.Option(min=0.01, max=5, help="Deviation of lengths over their mean.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate memory and step time of the base config for each tensor and sequence parallel size, and what fits.

    The model needs no weights: a folder with a config.json will do, and the data needn't be here.
    """
    chosen = [*(overrides or ()), *([f"hardware={hardware}"] if hardware else [])]
    loaded = load_spec(spec, chosen)
    trainer = estimating_trainer(load_trainer(loaded.trainer), loaded.trainer)
    config = load_trainer(loaded.trainer).Config.model_validate(loaded.base)
    searched = {path: domain.choice for path, domain in loaded.search.items() if isinstance(domain, Choice)}
    assumed = {"response": response, "prompt": prompt, "kept": kept, "spread": spread}
    try:
        found, workload = trainer.estimate_layouts(config, loaded.hardware.model_dump(), searched, assumed)
    except Exception as error:
        if faults := getattr(error, "faults", None):
            raise BadInput([Fault(f"{spec}:{f.key}", f.got, f.need, f.do) for f in faults]) from error
        raise
    told = asdict(workload)
    if as_json:
        echo_json({"hardware": loaded.hardware.name, "assumed": told, "layouts": [_tree(layout) for layout in found]})
        return
    console().print(_table(loaded, found))
    for line in _remarks(found):
        typer.echo(line)
    typer.echo(f"assumed: {', '.join(f'{name} {value:g}' for name, value in told.items())}")
    if not any(layout.time is not None and layout.time.parts["evaluation"] for layout in found):
        typer.echo("evaluation isn't counted: data.val_size isn't set, and only its file would tell")


def _tree(layout: LayoutEstimate) -> dict[str, Any]:
    """A layout as JSON has it; memory in GiB, times in seconds."""
    tree: dict[str, Any] = {"choice": dict(layout.choice), "fits": layout.fits, "refused": list(layout.refused)}
    if layout.memory is None or layout.time is None:
        return tree
    phases = {
        phase: {name: size / GIB for name, size in parts.items()} for phase, parts in layout.memory.phases.items()
    }
    memory = {"total_gb": layout.memory.total_gb, "phase": layout.memory.phase, **phases}
    time = {"total_s": layout.time.total, **layout.time.parts, "occupancy": layout.time.occupancy}
    speed = layout.time.tokens / layout.time.total
    return tree | {"max_num_seqs_that_fit": layout.rows, "memory": memory, "time": time, "tokens_per_s": speed}


def _table(spec: SweepSpec, found: Sequence[LayoutEstimate]) -> Table:
    """What can be, in the order in which it is found."""
    hardware = spec.hardware
    limit = "" if hardware.memory_gb is None else f" with {hardware.memory_gb:g} GiB each"
    title = f"{spec.name} on {hardware.name}: {units.count(hardware.devices, 'device')}{limit}, an estimate"
    columns = ("TP", "SP", "fits", "peak GiB", "step", "gen", "score", "update", "tokens a second", "rows that fit")
    table = Table(*columns, title=title, title_justify="left")
    for layout in found:
        if layout.memory is None or layout.time is None:
            continue
        memory, time = layout.memory, layout.time
        parts = [time.parts[name] for name in ("generation", "scoring", "update")]
        table.add_row(
            *map(str, layout.choice.values()),
            "yes" if layout.fits else "no",
            f"{memory.total_gb:.3g}",
            *map(_seconds, (time.total, *parts)),
            units.si(time.tokens / time.total),
            str(layout.rows),
        )
    return table


def _seconds(value: float) -> str:
    """A duration, with two digits where it is short."""
    return units.duration(value) if value >= 10 else f"{value:.2g}s"


def _remarks(found: Sequence[LayoutEstimate]) -> Iterator[str]:
    """What the table doesn't hold: where the first one's memory goes, what would fit, and what can't be."""
    first = found[0]
    if first.memory is not None:
        yield f"memory of the first: {first.memory}"
    if not any(layout.fits for layout in found):
        rows = max(layout.rows for layout in found)
        do = f"with config.rollout.max_num_seqs={rows} something does" if rows else "nor with fewer responses at once"
        yield f"nothing fits as it is; {do}"
    for reason in dict.fromkeys(reason for layout in found for reason in layout.refused):
        yield f"can't be: {reason}"
