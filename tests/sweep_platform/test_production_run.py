"""Production runs, with a trainer that counts instead of learning."""

from __future__ import annotations

import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sweep_platform.errors import BadInput, PlatformError
from sweep_platform.home import Home
from sweep_platform.production import load_production, run_production
from sweep_platform.production.journal import Journal, Step
from sweep_platform.tracking import Store


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The toy trainer, installed under the entry point `toy`."""
    info = tmp_path / "site" / "toy_trainer-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-trainer\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[sweep_platform.trainers]\ntoy = toy_trainer\n")
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "helpers"))
    import toy_trainer

    toy_trainer.trained.clear()
    yield toy_trainer
    sys.modules.pop("toy_trainer", None)


@pytest.fixture(scope="module")
def mlflow_folder(tmp_path_factory):
    """One MLflow database for the module: creating one takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


@pytest.fixture
def run(tmp_path, mlflow_folder, toy):
    home = Home(tmp_path / "home")
    store = Store(f"sqlite:///{mlflow_folder}/mlflow.db", mlflow_folder / "art")

    def call(path, *overrides, **options):
        return run_production(path, overrides, home=home, **{"store": store, **options})

    call.home, call.store = home, store
    return call


def write(tmp_path, text, name="best.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return path


TOY = """\
trainer: toy
provenance: {sweep: aime, version: 1, trial: 7, accuracy: 0.5, accuracy_metric: val/accuracy,
             exported_at: 2026-01-01T00:00:00Z}
config: {skill: 0.5, trainer: {total_training_steps: 5, default_local_dir: null, num_threads: null}}
"""


def mlflow_runs(store, name):
    experiment = store.client.get_experiment_by_name("production")
    return store.client.search_runs([experiment.experiment_id], f"attributes.run_name = '{name}'")


def test_runs_to_the_end_with_its_own_mlflow_run(tmp_path, run, monkeypatch):
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)  # the fluent API would write into that run
    path = write(tmp_path, TOY, "whole.yaml")
    seen = []
    result = run(path, progress=lambda *told: seen.append(told), on_step=lambda step: seen.append(step.step))
    assert seen == [("warm start", 1, 1), 1, 2, 3, 4, 5]
    assert (result.accuracy, result.accuracy_se, result.steps) == (0.5, 0.02, 5)
    assert not result.finished_before and result.resumed_from is None
    (entity,) = mlflow_runs(run.store, "whole")
    assert entity.info.status == "FINISHED"
    assert entity.data.tags["trainer"] == "toy", "a number says little without what made it"
    assert entity.data.tags["provenance.trial"] == "7" and entity.data.tags["state"] == "complete"
    assert entity.data.params["trainer.total_training_steps"] == "5"
    assert entity.data.metrics["val/accuracy"] == 0.5 and entity.data.metrics["cost/flops"] == 5e9
    history = run.store.client.get_metric_history(entity.info.run_id, "val/acc/mean:at:4")
    assert [point.step for point in history] == [1, 2, 3, 4, 5]
    names = {file.path for file in run.store.client.list_artifacts(entity.info.run_id)}
    assert names == {"config.yaml", "samples.json"}


def test_finished_run_shows_its_result_again(tmp_path, run, toy):
    path = write(tmp_path, TOY, "twice.yaml")
    first = run(path)
    again = run(path)
    assert again.finished_before and again.accuracy == first.accuracy
    assert toy.trained == [1, 2, 3, 4, 5]
    assert len(mlflow_runs(run.store, "twice")) == 1


def test_interrupt_then_the_same_call_resumes(tmp_path, run, toy):
    path = write(tmp_path, TOY.replace("skill: 0.5,", "skill: 0.5, interrupt_at: 4,"), "stopped.yaml")
    with pytest.raises(KeyboardInterrupt):
        run(path)
    head = json.loads((run.home.run_dir("stopped") / "run.json").read_text())
    assert head["state"] == "interrupted"
    assert mlflow_runs(run.store, "stopped")[0].info.status == "KILLED"
    result = run(path)
    assert result.resumed_from == 3 and result.accuracy == 0.5
    assert toy.trained == [1, 2, 3, 4, 5]
    (entity,) = mlflow_runs(run.store, "stopped")
    assert entity.info.status == "FINISHED"
    history = run.store.client.get_metric_history(entity.info.run_id, "actor/pg_loss")
    assert [point.step for point in history] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nan_at: 3", r"nan failed at step 3: actor/pg_loss is nan"),
        ("crash_at: 3", r"crash failed: ValueError: the toy broke"),
    ],
)
def test_failure_is_recorded_with_its_reason(tmp_path, run, fault, told):
    name = fault.split("_")[0]
    path = write(tmp_path, TOY.replace("skill: 0.5,", f"skill: 0.5, {fault},"), f"{name}.yaml")
    with pytest.raises(PlatformError, match=told) as caught:
        run(path)
    assert caught.value.exit_code == 1
    (entity,) = mlflow_runs(run.store, name)
    assert entity.info.status == "FAILED" and entity.data.tags["reason"] in str(caught.value)
    head = json.loads((run.home.run_dir(name) / "run.json").read_text())
    assert head["state"] == "failed" and head["reason"] == entity.data.tags["reason"]


def test_mlflow_that_cannot_be_written_ends_nothing(tmp_path, run):
    (tmp_path / "file").write_text("")
    store = Store(f"sqlite:///{tmp_path}/file/mlflow.db", tmp_path / "art")
    warned = []
    result = run(write(tmp_path, TOY, "dark.yaml"), store=store, warn=warned.append)
    assert result.accuracy == 0.5
    assert len(warned) == 1 and "can't be written" in warned[0]


def test_another_config_under_the_same_name_is_refused(tmp_path, run):
    path = write(tmp_path, TOY)
    run(path)
    with pytest.raises(BadInput, match=r"^override:skill: got 0.9; need 0.5, as .*runs/best was started"):
        run(path, "skill=0.9")
    with pytest.raises(BadInput, match=r"^\S*best.yaml:config.skill: got 0.7; need 0.5"):
        run(write(tmp_path, TOY.replace("skill: 0.5", "skill: 0.7")))
    assert run(path, "skill=0.9", name="better").accuracy == 0.9


def test_a_resumed_run_may_change_what_its_trainer_lets_it(tmp_path, run, toy):
    path = write(tmp_path, TOY.replace("skill: 0.5,", "skill: 0.5, interrupt_at: 4,"), "knobs.yaml")
    with pytest.raises(KeyboardInterrupt):
        run(path)
    with pytest.raises(BadInput) as caught:
        run(path, "trainer.total_training_steps=7", "trainer.seed=3", "skill=0.9")
    assert [fault.where for fault in caught.value.faults] == ["override:skill", "override:trainer.seed"]
    assert "as the finished" not in str(caught.value)
    result = run(path, "trainer.total_training_steps=7")
    assert (result.resumed_from, result.steps, toy.trained) == (3, 7, [1, 2, 3, 4, 5, 6, 7])
    head = json.loads((run.home.run_dir("knobs") / "run.json").read_text())
    assert head["config"]["trainer"]["total_training_steps"] == 7
    (change,) = head["changes"]
    assert (change["after_step"], change["changed"]) == (3, {"trainer.total_training_steps": [5, 7]})
    (entity,) = mlflow_runs(run.store, "knobs")
    assert json.loads(entity.data.tags["changes"]) == head["changes"]
    with pytest.raises(BadInput, match=r"config.trainer.total_training_steps: got 5; need 7, as the finished run"):
        run(path)
    assert run(path, "trainer.total_training_steps=7").finished_before


def test_a_trainer_that_does_not_say_what_may_change_lets_nothing(tmp_path, run, toy, monkeypatch):
    monkeypatch.delattr(toy, "free_to_change")
    path = write(tmp_path, TOY.replace("skill: 0.5,", "skill: 0.5, interrupt_at: 4,"), "fixed.yaml")
    with pytest.raises(KeyboardInterrupt):
        run(path)
    with pytest.raises(BadInput, match=r"^override:trainer.total_training_steps: got 7; need 5, as .*fixed was"):
        run(path, "trainer.total_training_steps=7")


def test_what_the_trainer_finds_is_told_before_anything_runs(tmp_path, run, toy):
    path = write(tmp_path, TOY)
    with pytest.raises(BadInput, match="^override:missing_file: got gone; need a file; make it"):
        run(path, "missing_file=gone")
    with pytest.raises(BadInput, match="best.yaml:config.missing_file: got gone; need a file; make it"):
        run(write(tmp_path, TOY.replace("{skill", "{missing_file: gone, skill")))
    assert not toy.trained
    assert not run.home.root.exists()


def test_a_folder_that_the_run_would_not_use_is_told(tmp_path, run, toy):
    path = write(tmp_path, TOY)
    for overrides in (["trainer.default_local_dir=/x"], ["trainer={default_local_dir: /x}"]):
        with pytest.raises(BadInput, match="^override:trainer.default_local_dir: got '/x'; need none: .*--name, or"):
            run(path, *overrides)
    path = write(tmp_path, TOY.replace("default_local_dir: null", "default_local_dir: /y"))
    with pytest.raises(BadInput) as caught:
        run(path, "skill=2")
    places = [fault.where for fault in caught.value.faults]
    assert places == [f"{path}:config.trainer.default_local_dir", "override:skill"]
    assert not toy.trained and not run.home.root.exists()


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden", "a b", "x" * 65])
def test_a_run_has_a_folder_of_its_own(tmp_path, run, toy, name):
    with pytest.raises(BadInput, match="^--name: got "):
        run(write(tmp_path, TOY), name=name)
    with pytest.raises(BadInput, match="give the run such a --name"):
        run(write(tmp_path, TOY, "my best.yaml"))
    assert not toy.trained and not run.home.root.exists()


def test_a_folder_that_cannot_be_used(tmp_path, run, toy):
    path = write(tmp_path, TOY)
    run.home.root.write_text("a file")
    with pytest.raises(BadInput, match="runs/best: got Not a directory; need a folder that can be written"):
        run(path)
    run.home.root.unlink()
    folder = run.home.run_dir("best")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"created_at": ')
    with pytest.raises(BadInput, match="runs/best: got a record that can't be read .*; move the folder away"):
        run(path)
    assert not toy.trained


def test_all_faults_of_a_file_at_once(tmp_path, toy):
    path = write(
        tmp_path,
        """\
trainer: toy
provenance: {sweep: aime, version: 0, trial: x, exported_at: 2026-01-01T00:00:00Z, mood: good}
""",
    )
    with pytest.raises(BadInput) as caught:
        load_production(path)
    told = str(caught.value).splitlines()
    assert len(told) == 4
    for place in (
        "provenance.version: got 0",
        "provenance.trial: got 'x'",
        "provenance.mood: got",
        "config: got nothing",
    ):
        assert any(f"best.yaml:{place}" in line for line in told), place


def test_faults_of_the_config_name_its_keys(tmp_path, toy):
    path = write(tmp_path, "trainer: toy\nconfig: {skill: 2, trainer: {total_training_steps: 0, sed: 1}}\n")
    with pytest.raises(BadInput) as caught:
        load_production(path)
    told = str(caught.value)
    assert told.count("\n") == 2
    assert "best.yaml:config.skill: got 2; need" in told
    assert "best.yaml:config.trainer.sed: got unknown key 'sed'" in told and "seed" in told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("trainer: nosuch\nconfig: {}\n", "trainer: got 'nosuch'; need one of"),
        ("- 1\n", "best.yaml: got list; need a mapping"),
        ("trainer: toy\ntrainer: toy\nconfig: {}\n", "best.yaml:2"),
        ("a: [\n", "best.yaml:2"),
        ("trainer: os.path\nconfig: {}\n", "best.yaml:trainer: got 'os.path', which lacks Config"),
        ("name: x\nsearch: {}\n", "best.yaml: got a sweep spec; need a production file; run it with platform sweep"),
    ],
)
def test_unusable_files(tmp_path, toy, text, told):
    with pytest.raises(BadInput, match=told):
        load_production(write(tmp_path, text))


def test_missing_file_and_bad_overrides(tmp_path, toy):
    with pytest.raises(BadInput, match="nosuch.yaml: got no such file"):
        load_production(tmp_path / "nosuch.yaml")
    path = write(tmp_path, TOY)
    with pytest.raises(BadInput) as caught:
        load_production(path, ["skill", "skill.deeper=1", "skill=[", "=3", "skill=1,2", "~skill", "trainer.sed=1"])
    assert len(caught.value.faults) == 7
    assert "override:trainer.sed: got unknown key 'sed'" in str(caught.value)
    assert load_production(path, ["skill=5e-1"]).config.skill == 0.5
    assert load_production(path, ["trainer.total_training_steps=9"]).config.trainer.total_training_steps == 9


def test_journal_cuts_off_half_a_line_and_keeps_the_first_of_a_repeated_step(tmp_path):
    now = datetime.now(UTC)
    journal = Journal(tmp_path)
    for step, loss in ((1, 0.5), (2, 0.4), (2, 0.3)):
        journal.append(Step(step, 3, {"loss": loss}, False, now))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 3, "tot')
    again = Journal(tmp_path)
    assert [(s.step, s.metrics["loss"]) for s in again.steps] == [(1, 0.5), (2, 0.4)]
    again.append(Step(3, 3, {"loss": 0.1}, True, now))
    assert Journal(tmp_path).final == Step(3, 3, {"loss": 0.1}, True, now)


def test_all_samples_of_each_evaluation_are_kept_once_through_kills(tmp_path, run, toy):
    """The toy saves its checkpoint after its report: a run that ends in between does the step again."""
    path = write(tmp_path, TOY.replace("skill: 0.5,", "skill: 0.5, test_freq: 2,"))

    def stop(step):
        if step.step == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(path, on_step=stop)
    folder = run.home.run_dir("best") / "evaluations"
    kept = {file.name: file.read_text() for file in folder.iterdir()}
    assert list(map(json.loads, kept["step-000004.jsonl"].splitlines())) == [
        {
            "data_source": "toy",
            "problem_id": f"p{number}",
            "sample_index": 0,
            "correct": number % 2 == 0,
            "answer": "4",
            "ground_truth": "4",
            "prompt": "2+2=",
            "response": "\ud800\n4",
            "response_length": 1,
        }
        for number in range(4)
    ]
    # As if it had been killed between the samples of step 5, or of a longer plan, and the step's own line.
    for number in (5, 6):
        (folder / f"step-00000{number}.jsonl").write_text("{}\n")
    assert run(path).resumed_from == 4 and toy.trained == [1, 2, 3, 4, 4, 5]
    assert sorted(file.name for file in folder.iterdir()) == [f"step-00000{n}.jsonl" for n in (2, 4, 5)]
    assert {name: (folder / name).read_text() for name in kept} == kept
    redone = (folder / "step-000005.jsonl").read_text().splitlines()
    assert [json.loads(line)["response"] for line in redone] == ["\ud800\n5"] * 4


def test_samples_are_on_the_disk_before_their_step_is(tmp_path):
    journal, step = Journal(tmp_path), Step(2, 3, {}, False, datetime.now(UTC))
    (tmp_path / "steps.jsonl").mkdir()
    with pytest.raises(IsADirectoryError):
        journal.append(step, "samples\n")
    assert journal.evaluation(2).read_text() == "samples\n"
    (tmp_path / "steps.jsonl").rmdir()
    journal.append(step, "again\n")
    assert journal.evaluation(2).read_text() == "again\n"
    journal.append(step, "told a second time\n")
    assert journal.evaluation(2).read_text() == "again\n"
    journal.evaluation(2).unlink()
    journal.append(step, "of a version that kept none\n")
    assert journal.evaluation(2).exists() and len(Journal(tmp_path).steps) == 1


def test_two_processes_do_not_run_one_run(tmp_path):
    with Journal(tmp_path).held(), pytest.raises(PlatformError, match="another process runs this"):
        with Journal(tmp_path).held():
            pass


def test_a_run_without_a_step_may_be_started_with_another_config(tmp_path, run):
    """Nothing was trained that the first config would have to be kept for."""
    path = write(tmp_path, TOY)
    with pytest.raises(PlatformError, match="the toy broke"):
        run(path, "crash_at=1", name="anew")
    assert run(path, "skill=0.9", name="anew").accuracy == 0.9
    assert sorted(entity.info.status for entity in mlflow_runs(run.store, "anew")) == ["FAILED", "FINISHED"]


def test_sigterm_ends_a_run_as_an_interrupt_does(tmp_path, run):
    """As a scheduler sends it before it takes the machine away."""
    path = write(tmp_path, TOY)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        run(path, name="term", on_step=lambda step: signal.raise_signal(signal.SIGTERM) if step.step == 2 else None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((run.home.run_dir("term") / "run.json").read_text())["state"] == "interrupted"
    assert run(path, name="term").resumed_from == 2
