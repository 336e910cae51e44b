"""Exporting a trial of a real ledger, and reading it back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import yaml
from run_ledger import Ledger, TrialState
from sweep_platform.errors import BadInput
from sweep_platform.production import export
from sweep_platform.production.document import ProductionFile
from sweep_platform.spec.compose import read_yaml


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "helpers"))
    import small_sweep

    with Ledger.open(f"sqlite:///{tmp_path}/ledger.db") as opened:
        sweep = small_sweep.SmallSweep(opened)
        sweep.whole_trial(0)
        sweep.whole_trial(1)
        failed = sweep.add(2)
        sweep.start(failed)
        sweep.finish(failed, TrialState.FAILED, "diverged")
        yield opened


def test_file_says_where_it_comes_from_and_what_was_measured(ledger, tmp_path):
    out = export(ledger, "aime", 1, tmp_path / "production" / "aime.yaml")
    text = out.read_text()
    assert text.startswith(
        "# Trial 1 of sweep aime@1.\n"
        "# Measured val/accuracy 0.400 ± 0.020 in one run.\n"
        "# Paid cost/flops 8 TFLOPs.\n"
        f"# Run it, and again to resume: platform train {out}\n"
    )
    file = ProductionFile.model_validate(read_yaml(out))
    origin = file.provenance
    assert (file.trainer, origin.sweep, origin.version, origin.trial, origin.commit) == ("toy", "aime", 1, 1, "c0ffee")
    assert (origin.accuracy, origin.accuracy_se, origin.cost) == (0.4, 0.02, 8e12)
    assert (origin.accuracy_metric, origin.cost_metric) == ("val/accuracy", "cost/flops")
    assert file.config == ledger.trials(1)[1].config


def test_places_of_the_machine_are_left_behind(ledger, tmp_path):
    sweep = ledger.create_sweep("placed", ledger.find_sweep("aime").spec, "1" * 64, 0, None)
    lease = ledger.acquire_sweep(sweep.id, "test")
    config = {"trainer": {"default_local_dir": "/somewhere", "num_threads": 1, "seed": 5}, "n": 1e-6}
    trial = ledger.add_trial(lease, number=0, params={}, params_hash="h", config=config, origin="tpe", sampler_state={})
    attempt = ledger.start_attempt(lease, trial.id, host="h", pid=1)
    ledger.finish_trial(attempt, TrialState.COMPLETE, values=(0.5, 1.0))
    out = export(ledger, "placed", 0, tmp_path / "placed.yaml")
    tree = yaml.safe_load(out.read_text())
    assert tree["config"] == {"trainer": {"default_local_dir": None, "num_threads": None, "seed": 5}, "n": 1e-6}
    assert tree["provenance"]["commit"] is None and tree["provenance"]["accuracy_se"] is None


def test_an_existing_file_is_kept_unless_forced(ledger, tmp_path):
    out = tmp_path / "aime.yaml"
    out.write_text("mine")
    with pytest.raises(BadInput, match=r"--out: got .*aime.yaml, which exists; need a new file; .*--force"):
        export(ledger, "aime", 1, out)
    assert out.read_text() == "mine"
    export(ledger, "aime", 1, out, force=True)
    assert "Trial 1" in out.read_text()
    assert ledger.promotions() == [], "an export promotes nothing"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(out.stat().st_mode) == 0o666 & ~umask
    assert [path.name for path in tmp_path.glob(".aime*")] == []


def test_what_cannot_be_exported(ledger, tmp_path):
    out = tmp_path / "aime.yaml"
    with pytest.raises(
        BadInput, match=r"--trial: got 2, which is failed; need a complete trial of aime@1: one of \[0, 1\]"
    ):
        export(ledger, "aime", 2, out)
    with pytest.raises(BadInput, match="--trial: got 9; need a complete trial"):
        export(ledger, "aime", 9, out)
    with pytest.raises(BadInput, match="sweep: got 'nosuch'; need one of"):
        export(ledger, "nosuch", 0, out)
    with pytest.raises(BadInput, match=r"--to: got 'verl'; need one of \['dapo'\]"):
        export(ledger, "aime", 1, out, to="verl")
    with pytest.raises(BadInput, match="--out"):
        export(ledger, "aime", 1, tmp_path / "ledger.db" / "aime.yaml")
    assert not out.exists()
