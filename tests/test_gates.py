"""The gates that every change passes, beside types: linters, import contracts, sizes, what a light command loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ("platform", "trainers", "storage")
BIN = Path(sys.executable).parent
HEAVY = {"torch", "ray", "mlflow", "sqlalchemy", "optuna", "transformers", "plotly", "matplotlib", "numpy"}


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("ruff", "check", "."), id="ruff check"),
        pytest.param(("ruff", "format", "--check", "."), id="ruff format"),
        pytest.param(("lint-imports",), id="import contracts"),
    ],
)
def test_gate(command: tuple[str, ...]) -> None:
    result = run(BIN / command[0], *command[1:])
    assert result.returncode == 0, result.stdout + result.stderr


def python_files() -> list[Path]:
    return [path for source in (*SOURCES, "tests", "benchmarks") for path in (ROOT / source).rglob("*.py")]


def test_files_and_functions_stay_small() -> None:
    over = []
    for path in python_files():
        text = path.read_text()
        if (lines := text.count("\n")) > 400:
            over.append(f"{path.relative_to(ROOT)}: {lines} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 60:
                over.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}")
    assert not over


def test_source_roots_hold_no_python_file() -> None:
    """`platform/__init__.py` would shadow the standard library's module."""
    assert not [path for source in SOURCES for path in (ROOT / source).glob("*.py")]


@pytest.mark.parametrize(
    "statement",
    [
        "import sweep_platform.cli",
        "import sweep_platform.frontier",
        "import dapo, dapo.config",
        "import run_ledger",
        "from sweep_platform.spec import load_spec; load_spec('sweeps/aime.yaml')",
        "import dapo.trainer; dapo.trainer.preflight(dapo.trainer.Config())",
    ],
)
def test_light_code_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print(*sorted({HEAVY!r} & set(sys.modules)))"
    result = run(sys.executable, "-c", code)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""
