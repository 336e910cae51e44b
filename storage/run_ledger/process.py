"""Whether a process that wrote its name into the ledger still lives."""

from __future__ import annotations

import os
from pathlib import Path


def pid_scope() -> str:
    """Name the space that process ids count in: this boot of this machine, and its container's namespace.

    Empty where the system doesn't tell (only Linux does): then nobody's death can be seen, and leases run out.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def process_started(pid: int) -> float | None:
    """When a process started, in the machine's own ticks; None if there is none, or only its zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else float(fields[18])


def surely_gone(scope: str, pid: int, started: float) -> bool:
    """Whether a process was one of this scope and no longer is: no such id, or another process by that id."""
    return scope != "" and scope == pid_scope() and process_started(pid) != started
