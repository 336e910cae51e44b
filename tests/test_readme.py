"""What the documents show can be typed: each command parses, its spec loads, its overrides name what exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from sweep_platform.cli import app
from sweep_platform.spec import load_spec
from sweep_platform.spec.overrides import parse
from sweep_platform.spec.paths import leaves
from sweep_platform.trainers import load_trainer

ROOT = Path(__file__).parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "sweeps").rglob("*.yaml"))]
SPECS = [path for path in (ROOT / "sweeps").rglob("*.yaml") if "objectives" in yaml.safe_load(path.read_text())]
GROUPS = [path for path in (ROOT / "sweeps").rglob("*.yaml") if path.parent.name in ("model", "data", "hardware")]


def commands(path: Path) -> list[str]:
    """The command lines `platform …` of a document: of its indented or fenced lines, and of comments in YAML."""
    text = re.sub(r"\s*\\\n\s*", " ", path.read_text())
    lines = re.findall(r"^(?:#? {3,}|\$ )(?:.*&& )?(platform [a-z].*)$", text, re.M)
    fenced = re.findall(r"^(platform [a-z].*)$", "\n".join(re.findall(r"```.*?\n(.*?)```", text, re.S)), re.M)
    alternatives = [part.strip() for line in lines + fenced for part in re.split(r"\s{2}\|\s{2}", line)]
    # A comment stands behind `#` or, in YAML's own comments, behind a wide gap.
    return [re.split(r"\s+# |\s{4,}(?=[a-z])", line)[0] for line in alternatives]


SHOWN = [(path.relative_to(ROOT).as_posix(), line) for path in DOCUMENTS for line in commands(path)]


def test_the_documents_show_commands() -> None:
    assert len([line for name, line in SHOWN if name == "README.md"]) >= 12
    assert ("sweeps/aime.yaml", "platform sweep sweeps/aime.yaml") in SHOWN


@pytest.mark.parametrize(("document", "line"), SHOWN, ids=[f"{name}: {line[:60]}" for name, line in SHOWN])
def test_each_command_can_be_typed(document: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    _, name, *arguments = shlex.split(line)
    group = typer.main.get_command(app)
    context = group.make_context("platform", [name, *arguments])
    command = group.get_command(context, name)
    assert command is not None, f"{document} shows a command that there isn't: {line}"
    values = command.make_context(name, arguments, parent=context).params
    if name in ("sweep", "validate"):
        load_spec(values["spec"], values["overrides"] or ())
    if name == "train":
        known = {path for path, _ in leaves(load_trainer("dapo").Config)}
        assert {parse(text).key_or_group for text in values["overrides"] or ()} <= known


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.name)
def test_each_spec_is_valid(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a spec holds wherever it is called from
    assert load_spec(path, preflight=True).name == path.stem


@pytest.mark.parametrize("path", GROUPS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_each_choice_of_a_group_composes(path: Path) -> None:
    spec = load_spec(ROOT / "sweeps" / "aime.yaml", [f"{path.parent.name}={path.stem}"])
    written = yaml.safe_load(path.read_text())
    group = getattr(spec, path.parent.name)
    values = group if isinstance(group, dict) else group.model_dump()
    assert written.items() <= values.items()


def test_the_figures_are_the_measured_ones() -> None:
    """`python -m benchmarks --table` makes the README's table from the result files."""
    command = [sys.executable, "-m", "benchmarks", "--table"]
    table = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert table.count("\n") > 3
    assert table in (ROOT / "README.md").read_text()
