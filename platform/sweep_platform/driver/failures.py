"""Whose fault it is that a trial ended: the config's, or that of what it ran on.

Infrastructure that fails (a node, memory, a kill) says nothing of a config. Such a trial is tried again from its
checkpoint, after a pause that grows; a searcher never hears of it as a bad one.
"""

from __future__ import annotations

import re

from sweep_platform.driver.assignment import Crashed, Lost, Outcome

RETRIES = 2
"""Attempts after the first that a trial gets when what runs it fails."""
BACKOFF_S = (1.0, 8.0)
"""Seconds before each of them: a machine that is short of memory, or rebooting, needs a while."""
_MACHINE = re.compile(
    r"^(MemoryError|OutOfMemoryError|torch\.\w*OutOfMemoryError|ConnectionError|ConnectionResetError|BrokenPipeError"
    r"|DistBackendError|DistNetworkError)\b"
    r"|\b(out of memory|Cannot allocate memory|can't allocate memory|NCCL error|HCCL error|Input/output error)\b"
    r"|\bgloo\b.*\b(Connection (closed|reset) by peer|Broken pipe|Connection refused|Timed out)\b"
    r"|\bprocess \d+ of \d+ ended \(SIG(KILL|TERM)\)",
    re.IGNORECASE,
)
_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|Read-only file system|database or disk is full"
)


def machine_fault(outcome: Outcome) -> str | None:
    """Why an attempt failed, if it was what ran it and not the trial's config; None otherwise."""
    if isinstance(outcome, Lost):
        return outcome.why
    if isinstance(outcome, Crashed) and (_MACHINE.search(outcome.error) or disk_fault(outcome.error)):
        return outcome.error
    return None


def disk_fault(error: str) -> bool:
    """Whether an error says that nothing can be written any more: every other trial would meet it too."""
    return _DISK.search(error) is not None
