"""Where the platform keeps things: one folder, `.platform` here or `PLATFORM_HOME`."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_platform.errors import BadInput, Fault, LedgerLost, LedgerRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from run_ledger import Ledger, SweepRecord


_SQLITE = "sqlite:///"
PATIENCE_S = 60.0
"""Seconds for which commands that train wait for their ledger: a server restarts in less."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder that holds ledger, MLflow store and checkpoints of the sweeps started from here."""

    root: Path

    @classmethod
    def locate(cls) -> Home:
        """Take `PLATFORM_HOME`, or `.platform` in the current folder. Creates nothing."""
        return cls(Path(os.environ.get("PLATFORM_HOME", ".platform")).absolute())

    @property
    def ledger_url(self) -> str:
        """`PLATFORM_LEDGER`, or an SQLite file."""
        return os.environ.get("PLATFORM_LEDGER") or f"sqlite:///{self.root / 'ledger.db'}"

    @property
    def has_ledger(self) -> bool:
        """Whether there is a ledger; of a server's, that one is named."""
        url = self.ledger_url
        return not url.startswith(_SQLITE) or Path(url.removeprefix(_SQLITE)).exists()

    @property
    def mlflow_uri(self) -> str:
        """`MLFLOW_TRACKING_URI`, or an SQLite file of its own (MLflow and others can't share one)."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def artifacts(self) -> Path:
        """MLflow's artifacts."""
        return self.root / "mlartifacts"

    def trial_dir(self, sweep: SweepRecord, number: int) -> Path:
        """Checkpoints and traceback of one trial."""
        return self.root / "trials" / sweep.address / str(number)

    def run_dir(self, name: str) -> Path:
        """Checkpoints of a production run."""
        return self.root / "runs" / name

    @contextmanager
    def ledger(self, *, must_exist: bool = True, patience_s: float = 0.0) -> Iterator[Ledger]:
        """Open the ledger.

        Args:
            must_exist: refuse to make one.
            patience_s: seconds to wait for a database that goes away, or that another process locks, meanwhile.

        Raises:
            LedgerRefused: there is none yet (with `must_exist`), it can't be used, or another driver has the sweep.
            LedgerLost: it could be used, and then couldn't.
        """
        from run_ledger import Ledger, LedgerAway, LedgerError, LedgerLocked

        url = self.ledger_url
        if must_exist and not self.has_ledger:
            path = url.removeprefix(_SQLITE)
            raise LedgerRefused(f"ledger: got no file {path}; need one; run a sweep first, or set PLATFORM_HOME")
        opened = False
        try:
            with Ledger.open(url, patience_s=patience_s) as ledger:
                opened = True
                yield ledger
        except (LedgerAway, LedgerLocked) as error:
            raise (LedgerLost if opened else LedgerRefused)(f"ledger: {error}") from error
        except LedgerError as error:
            raise LedgerRefused(f"ledger: {error}") from error


def production_file(address: str) -> Path:
    """Where a sweep's chosen config goes unless the user says otherwise: not to the spec's own name."""
    return Path("production") / f"{address.partition('@')[0]}.yaml"


def find_sweep(ledger: Ledger, address: str) -> SweepRecord:
    """Return the sweep that `address` (`name` for its latest version, or `name@version`) names.

    Raises:
        BadInput: there is none.
    """
    sweep = ledger.find_sweep(address)
    if sweep is None:
        name = address.partition("@")[0]
        versions = [record.address for record in ledger.sweeps() if record.name == name]
        known = versions or sorted({record.name for record in ledger.sweeps()})
        need = f"one of {known}" if known else "a sweep that was run; there is none yet"
        raise BadInput([Fault("sweep", repr(address), need, "check the name, or run that sweep first")])
    return sweep
