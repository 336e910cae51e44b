"""One of the processes that `dapo.launch` starts: reads the config, trains, and the leading one reports."""

from __future__ import annotations

import json
import logging
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from dapo.batch import StepMetrics
from dapo.config import Config
from dapo.errors import DapoError
from dapo.launch import step_to


def main() -> int:
    """Train the config on standard input; the leading process is handed a connection's file descriptor."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # whoever started it says when to end
    connection = Connection(int(sys.argv[1])) if len(sys.argv) > 1 else None
    config = Config.model_validate_json(sys.stdin.buffer.read())
    from dapo.parallel import processes_end_together
    from dapo.train import train

    if connection is not None:
        logging.basicConfig(level=logging.INFO, handlers=[_Told(connection)])

    def report(step: StepMetrics) -> bool:
        return bool(_asked(connection, step_to(step)))

    try:
        with processes_end_together():
            train(config, report)
    except DapoError as error:
        if connection is not None:
            connection.send_bytes(json.dumps({"error": str(error)}).encode())
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


class _Told(logging.Handler):
    """Hands log lines to whoever started this process, who knows where they belong."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line; it has no answer."""
        said = {"logger": record.name, "level": record.levelno, "line": record.getMessage()}
        self._connection.send_bytes(json.dumps(said).encode())


def _asked(connection: Connection | None, message: dict[str, Any]) -> Any:
    if connection is None:
        return True
    connection.send_bytes(json.dumps(message).encode())
    try:
        return json.loads(connection.recv_bytes())
    except EOFError:
        sys.exit("whoever started this run is gone")


if __name__ == "__main__":
    sys.exit(main())
