"""What a trainer says while it trains, beside its reports: kept as a file with the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sweep_platform.trainers import Trainer

LOG = "trainer.log"
"""In the folder of a trial or run: the plan, each update's health, and what became of the plan."""


class _File(logging.FileHandler):
    """A log that does without a line where the disk is full: what must be kept says so by itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, if it can be."""
        with suppress(OSError):
            self.stream = self.stream or self._open()
            self.stream.write(self.format(record) + self.terminator)
            self.flush()

    def close(self) -> None:
        """Close the file, with what could not be written lost."""
        with suppress(OSError):
            super().close()


@contextmanager
def logged(trainer: Trainer, folder: Path) -> Iterator[None]:
    """Append what the trainer's package logs, plain information included, to a file in a folder."""
    logger = logging.getLogger(getattr(trainer, "__name__", "trainer").partition(".")[0])
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    handler, before = _File(folder / LOG, encoding="utf-8", delay=True), logger.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()
