"""The command report: a sweep as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweep_platform.cli.app import app, examples
from sweep_platform.cli.explore import Address
from sweep_platform.home import Home, find_sweep


@app.command(epilog=examples("platform report aime", "platform report aime@1 --out aime.html"))
def report(
    sweep: Address,
    out: Annotated[Path | None, typer.Option(help="The file to write; reports/NAME.html by default.")] = None,
) -> None:
    """Write a sweep's report: one HTML file with everything in it, which works offline. Overwrites an earlier one."""
    with Home.locate().ledger() as ledger:
        record = find_sweep(ledger, sweep)
        from sweep_platform.report import write_report

        path = out or Path("reports") / f"{record.name}.html"
        write_report(ledger, record, path)
    typer.echo(f"report of {record.address} written to {path}; open it in a browser")
