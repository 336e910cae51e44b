"""The command line, with one MLflow database for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from shell import TOY, Shell


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
