"""Starts the processes of a mesh, each a module of `tests/support`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parent


def started_together(processes: int, module: str, *arguments: Any) -> str:
    """Run a module in so many processes that find one another; what the leading one wrote."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    path = os.pathsep.join([str(SUPPORT), *filter(None, sys.path)])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    shared |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    children = [
        subprocess.Popen(command, env={**shared, "RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for rank in range(processes)
    ]
    said = [child.communicate(timeout=240) for child in children]
    assert all(child.returncode == 0 for child in children), said[0][1].decode()[-2000:]
    return said[0][0].decode()
