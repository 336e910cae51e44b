"""An MLflow tracking store: where it is, a client for it, and its experiments.

Everything goes through MlflowClient with an explicit URI: the fluent API would take MLFLOW_RUN_ID and the
current folder into account, and write into a run that isn't ours.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_platform.errors import BadInput, Fault, one_line

if TYPE_CHECKING:
    from mlflow import MlflowClient

MAX_REASON = 240
"""Characters of an error that are told."""
KIND = "custom_model_development"
"""MLflow's name of experiments whose page shows training runs, not traces."""
_SQLITE = "sqlite:///"
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # A server that is away is told within seconds; MLflow alone would try for minutes. Later rounds try again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}
"""What MLflow reads nowhere but there; a user's own settings stay."""


@dataclass(frozen=True)
class Store:
    """One tracking store."""

    uri: str
    """`sqlite:///…` or another database, or the address of an MLflow server."""
    artifacts: Path
    """Folder for artifacts of a database; a server decides for itself."""

    @property
    def shown(self) -> str:
        """The URI without its password."""
        return re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", self.uri)

    @property
    def local(self) -> bool:
        """Whether this process writes the database itself, rather than through a server."""
        return not self.uri.startswith(("http://", "https://"))

    @property
    def database_file(self) -> Path | None:
        """The SQLite file, when it is one."""
        return Path(self.uri.removeprefix(_SQLITE)) if self.uri.startswith(_SQLITE) else None

    @cached_property
    def client(self) -> MlflowClient:
        """A client; the first use imports MLflow (about 2 s) and creates or migrates the database."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        # MLflow 3.17 uses what SQLAlchemy 2.1 deprecates, and fails for good where warnings are errors.
        warnings.filterwarnings("ignore", message="The ``noload`` loader strategy", category=DeprecationWarning)
        from mlflow import MlflowClient

        for chatty in ("mlflow", "alembic"):  # no INFO lines through a live table
            logging.getLogger(chatty).setLevel(logging.WARNING)
        # What it logs as an error, with a traceback, it raises too, and the observer tells it in one line.
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
        # MLflow's processes race when several open a fresh database: the first one migrates, the rest wait.
        with self._migration_lock():
            client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
            client.search_experiments(max_results=1)
        return client

    @contextmanager
    def _migration_lock(self) -> Iterator[None]:
        file = self.database_file
        if file is None:
            yield
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.with_name(f"{file.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turn what MLflow, its database, network and drivers raise into one message for the user.

        Raises:
            BadInput: MLflow can't be used there.
        """
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            reason = one_line(error, MAX_REASON)
            need = "a database or server of MLflow that answers and can be written"
            fault = Fault("MLflow", f"{self.shown} ({reason})", need, "check MLFLOW_TRACKING_URI, then try again")
            raise BadInput([fault]) from error

    def experiment(self, name: str) -> str:
        """Id of the experiment of that name, created or restored from the bin where needed."""
        found = self.client.get_experiment_by_name(name)
        if found is None:
            place = (self.artifacts / name).absolute().as_uri() if self.local else None
            tags = {"mlflow.experimentKind": KIND}
            return str(self.client.create_experiment(name, artifact_location=place, tags=tags))
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)
