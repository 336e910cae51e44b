"""Run one benchmark and write `benchmarks/results/NAME.json`; `--table` prints the README's table of figures."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform as machine
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
KEYS = ("name", "question", "goal", "measured", "met", "peers", "runs", "hardware", "command", "commit", "date")


def names() -> list[str]:
    """Benchmarks there are."""
    return sorted(module.name for module in pkgutil.iter_modules([str(HERE)]) if not module.name.startswith("_"))


def hardware() -> str:
    """Processor, cores that may be used, memory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), machine.processor()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def commit() -> str:
    """Commit of the code measured, marked when the tree differs from it."""
    git = ["git", "-C", str(HERE)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
    changed = subprocess.run([*git, "status", "--porcelain", "--", ":/platform", ":/trainers", ":/storage", ":/sweeps"],
                             capture_output=True, text=True, check=True)  # fmt: skip
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def measure(name: str) -> dict[str, Any]:
    """Run benchmark `name` and add where, when and of what commit."""
    measured = importlib.import_module(f"benchmarks.{name}").run()
    result = {
        "name": name,
        **measured,
        "hardware": hardware(),
        "command": f"python -m benchmarks {name}",
        "commit": commit(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return {key: result[key] for key in KEYS}


def table() -> str:
    """The README's table of figures, made from the result files."""
    rows = ["| figure | goal | measured | met | command |", "|---|---|---|---|---|"]
    for path in sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        met = "yes" if result["met"] else "no"
        rows.append(
            f"| {result['question']} | {result['goal']} | {result['measured']} | {met} | `{result['command']}` |"
        )
    return "\n".join(rows)


def main() -> int:
    """Command line of the benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=names())
    parser.add_argument("--table", action="store_true", help="print the table of figures")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return 0
    if arguments.name is None:
        parser.error(f"name one of {names()}")
    result = measure(arguments.name)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{arguments.name}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({key: result[key] for key in KEYS if key != "runs"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
