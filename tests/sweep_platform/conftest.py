"""A ledger in an empty home, and the command line with one MLflow database for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from run_ledger import Ledger
from shell import TOY, Shell
from sweep_platform.home import Home


@pytest.fixture(scope="session")
def mlflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mlflow") / "mlflow.db"


@pytest.fixture
def platform(tmp_path: Path, mlflow_database: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The command, called from an empty folder with a toy spec, `toy.yaml`."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "toy.yaml").write_text(TOY)
    monkeypatch.chdir(folder)
    return Shell(tmp_path / "home", mlflow_database)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    with Ledger.open(home.ledger_url) as ledger:
        yield ledger
