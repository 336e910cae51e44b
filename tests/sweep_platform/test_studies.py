"""Sweeps as Optuna studies and back, with Optuna's own storage and dashboard."""

from __future__ import annotations

import io
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution, IntDistribution
from optuna.trial import TrialState as State
from optuna.trial import create_trial
from run_ledger import CostRecord, Ledger, SweepRecord, TrialRecord, TrialState
from shell import Shell
from small_ledger import step
from sweep_platform.driver import open_roster
from sweep_platform.errors import BadInput
from sweep_platform.executors import make_executor
from sweep_platform.frontier import Frontier, points
from sweep_platform.home import Home
from sweep_platform.search import Searcher, params_hash
from sweep_platform.search.samplers import Verdict
from sweep_platform.spec import SweepSpec
from sweep_platform.studies import Imported, export_study, import_study
from sweep_platform.studies.importing import read_study
from toybox.sweeps import SEARCH, run_sweep, toy_spec

CONDITIONAL = {**SEARCH, "actor.shards": {"int": [1, 4], "when": "actor.batch >= 5"}}
BOUND = "cost/flops <= 20e9"
RULE = "actor.lr <= 0.7"
SPACE = {"actor.lr": FloatDistribution(0.01, 1.0, log=True), "actor.batch": IntDistribution(1, 8)}


def record(
    ledger: Ledger, roster: Any, params: dict[str, Any], state: TrialState, *, reported: int = 0, **fields: Any
) -> None:
    """Write a trial in a state, with so many steps reported."""
    number = roster.next_number
    open_at_first = state not in (TrialState.INFEASIBLE,) or reported
    trial = roster.add(
        number,
        params,
        {"trainer": {"seed": 7}},
        params_hash=params_hash(params),
        origin="tpe",
        sampler_state={},
        state=TrialState.WAITING if open_at_first else state,
        reason=None if open_at_first else "actor.shards: got 4; need at most 1",
    )
    if open_at_first and state is not TrialState.WAITING:
        attempt = ledger.start_attempt(roster.lease, trial.id, host="here", pid=1)
        for at in range(1, reported + 1):
            metrics = {"val/accuracy": 0.1 * at, "val/accuracy_se": 0.02, "cost/flops": 8e9 * at}
            step(ledger, attempt, at, total_steps=4, metrics=metrics, cost=CostRecord(flops=8e9 * at, tokens=5 * at))
        if state is not TrialState.RUNNING:
            values = fields.pop("values", None)
            ledger.finish_trial(attempt, state, values, fields.pop("reason", None))
    roster.refresh(number)


@pytest.fixture
def states(ledger: Ledger) -> tuple[SweepRecord, list[TrialRecord]]:
    """A sweep with a trial in each state."""
    spec = toy_spec(search=CONDITIONAL, constraints=[BOUND, RULE])
    with open_roster(ledger, spec) as roster:
        wide = {"actor.lr": 0.1, "actor.batch": 8, "actor.shards": 4}
        record(ledger, roster, {"actor.lr": 0.3, "actor.batch": 2}, TrialState.COMPLETE, reported=2, values=(0.2, 16e9))
        record(ledger, roster, wide, TrialState.INFEASIBLE)
        broken = {"reported": 4, "values": (0.4, 32e9), "reason": f"cost/flops = 32e9, not {BOUND}"}
        record(ledger, roster, {"actor.lr": 0.2, "actor.batch": 4}, TrialState.INFEASIBLE, **broken)
        record(ledger, roster, {"actor.lr": 0.2, "actor.batch": 1}, TrialState.PRUNED, reported=2, reason="at a rung")
        record(ledger, roster, {"actor.lr": 0.5, "actor.batch": 1}, TrialState.FAILED, reported=1, reason="nan")
        record(ledger, roster, {"actor.lr": 0.6, "actor.batch": 1}, TrialState.LOST, reported=1, reason="killed")
        record(ledger, roster, {"actor.lr": 0.7, "actor.batch": 1}, TrialState.PAUSED, reported=1)
        record(ledger, roster, {"actor.lr": 0.1, "actor.batch": 1}, TrialState.RUNNING, reported=1)
        record(ledger, roster, {"actor.lr": 0.2, "actor.batch": 3}, TrialState.WAITING)
        return roster.sweep, roster.trials


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def test_every_trial_is_there_in_its_state(
    states: tuple[SweepRecord, list[TrialRecord]], ledger: Ledger, storage: str
) -> None:
    sweep, trials = states
    assert export_study(ledger, sweep, storage).study == "toy@1"
    study = optuna.load_study(study_name="toy@1", storage=storage)
    assert study.metric_names == ["val/accuracy", "cost/flops"]
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    assert study.user_attrs["sweep"]["address"] == "toy@1"
    found = study.trials
    shown = [
        *(State.COMPLETE, State.FAIL, State.COMPLETE, State.PRUNED, State.FAIL, State.FAIL),
        *(State.RUNNING, State.RUNNING, State.WAITING),
    ]
    assert [trial.state for trial in found] == shown
    assert [trial.number for trial in found] == [trial.number for trial in trials]
    for mine, theirs in zip(trials, found, strict=True):
        assert theirs.params == dict(mine.params) and theirs.user_attrs["state"] == mine.state
        assert theirs.user_attrs.get("reason") == mine.reason and theirs.user_attrs["seed"] == 7
        assert theirs.user_attrs["cost"]["flops"] == mine.cost.flops
        assert theirs.values == (None if mine.values is None else list(mine.values)) or mine.state == "pruned"
    assert "actor.shards" not in found[0].params and found[1].params["actor.shards"] == 4
    assert found[0].user_attrs["standard_errors"] == {"val/accuracy": 0.02}
    assert found[3].intermediate_values == {1: pytest.approx(0.1), 2: pytest.approx(0.2)}
    assert found[3].datetime_start is not None and trials[3].started_at is not None
    assert found[3].datetime_start.astimezone() == trials[3].started_at
    feasible = [all(value <= 0 for value in trial.constraints.values()) for trial in found]
    assert feasible == [True, False, False, *[True] * 6]
    told = {key: value for key, value in found[2].constraints.items() if not key.isdigit()}
    assert told == {RULE: -1, "cost/flops <= 2e+10": pytest.approx(12e9), "can run": -1}
    assert found[1].constraints["can run"] == 1
    assert {trial.number for trial in study.best_trials} == {0}, "the infeasible one is better, and no candidate"


def test_again_it_replaces_what_it_wrote(
    states: tuple[SweepRecord, list[TrialRecord]], ledger: Ledger, storage: str
) -> None:
    sweep, _ = states
    assert not export_study(ledger, sweep, storage).replaced
    optuna.create_study(study_name="toy@1 (being written)", storage=storage)  # what a killed export leaves
    with open_roster(ledger, SweepSpec.from_dict(sweep.spec)) as roster:
        record(ledger, roster, {"actor.lr": 0.9, "actor.batch": 1}, TrialState.WAITING)
    again = export_study(ledger, sweep, storage)
    assert again.replaced and again.trials == 10
    assert optuna.get_all_study_names(storage) == ["toy@1"]
    assert len(optuna.load_study(study_name="toy@1", storage=storage).trials) == 10


def test_studies_of_others_are_left_alone(
    states: tuple[SweepRecord, list[TrialRecord]], ledger: Ledger, storage: str
) -> None:
    sweep, _ = states
    optuna.create_study(study_name="mine", storage=storage)
    with pytest.raises(BadInput, match="'mine', a study that is no export of a sweep"):
        export_study(ledger, sweep, storage, "mine")
    export_study(ledger, sweep, storage, "shared")
    other = ledger.create_sweep("other", dict(sweep.spec), sweep.identity, 0, None)
    with pytest.raises(BadInput, match="an export of toy@1"):
        export_study(ledger, other, storage, "shared")
    study = optuna.load_study(study_name="shared", storage=storage)
    study.add_trial(
        create_trial(params={"actor.lr": 0.1}, distributions={"actor.lr": SPACE["actor.lr"]}, values=[0, 1])
    )
    with pytest.raises(BadInput, match="1 trials were added"):
        export_study(ledger, sweep, storage, "shared")
    assert len(optuna.load_study(study_name="shared", storage=storage).trials) == 10, "nothing was touched"


def test_a_storage_must_be_one(states: tuple[SweepRecord, list[TrialRecord]], ledger: Ledger, tmp_path: Path) -> None:
    sweep, _ = states
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("create table runs (id integer)")
    for url, words in (
        ("studies.db", "write sqlite:///studies.db"),
        ("nonsense://x", "--storage: got nonsense"),
        (f"sqlite:///{tmp_path}/no/such/folder.db", "unable to open"),
        (f"sqlite:///{tmp_path}/other.db", r"a database of something else \(runs\)"),
        (f"sqlite:///{tmp_path}/ledger.db", "something else"),
        ("postgresql://me:secret@127.0.0.1:9/x", "--storage: got postgresql"),
    ):
        with pytest.raises(BadInput, match=words) as caught:
            export_study(ledger, sweep, url)
        assert "secret" not in str(caught.value)
    with sqlite3.connect(tmp_path / "other.db") as database:
        assert database.execute("select count(*) from sqlite_master").fetchone() == (1,)


def test_the_dashboard_reads_it(states: tuple[SweepRecord, list[TrialRecord]], ledger: Ledger, storage: str) -> None:
    from optuna_dashboard import wsgi

    sweep, trials = states
    export_study(ledger, sweep, storage)
    dashboard = wsgi(optuna.storages.RDBStorage(storage))

    def get(path: str) -> Any:
        heads: list[str] = []
        asked = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "QUERY_STRING": "", "SERVER_NAME": "127.0.0.1"}
        asked |= {"SERVER_PORT": "80", "SERVER_PROTOCOL": "HTTP/1.1"}
        streams = {"wsgi.input": io.BytesIO(), "wsgi.errors": io.StringIO(), "wsgi.url_scheme": "http"}
        body = b"".join(dashboard({**asked, **streams}, lambda status, *_: heads.append(status)))
        assert heads == ["200 OK"], body
        return json.loads(body)

    (study,) = get("/api/studies")["study_summaries"]
    assert study["study_name"] == "toy@1"
    detail = get(f"/api/studies/{study['study_id']}")
    assert len(detail["trials"]) == len(trials)
    assert detail["objective_names"] == ["val/accuracy", "cost/flops"]
    assert [trial["state"] for trial in detail["trials"]][:4] == ["Complete", "Fail", "Complete", "Pruned"]
    assert {item["name"] for item in detail["union_search_space"]} == set(SEARCH)
    assert {param["name"] for param in detail["trials"][1]["params"]} == set(CONDITIONAL)
    infeasible = [max(trial["constraints"]) > 0 for trial in detail["trials"]]
    assert infeasible == [False, True, True, *[False] * 6], "the page marks these"


def bring(ledger: Ledger, spec: SweepSpec, storage: str, name: str, **options: Any) -> Imported:
    found, left = read_study(spec, storage, name, **options)
    with open_roster(ledger, spec) as roster:
        return import_study(roster, spec, name, found, left)


def test_there_and_back_keeps_all_that_is_known(ledger: Ledger, home: Home, storage: str) -> None:
    """A second home takes a whole sweep over: what it knew, its front and what its sampler would suggest."""
    spec = toy_spec(
        search={**SEARCH, "actor.shards": {"choice": [1, 2]}}, budget={"trials": 8}, sampler={"name": "tpe"}
    )
    trials = run_sweep(ledger, home, spec, make_executor("inline"))
    sweep = ledger.find_sweep("toy")
    assert sweep is not None
    export_study(ledger, sweep, storage)
    with Ledger.open(f"sqlite:///{home.root}/second.db") as second:
        done = bring(second, spec, storage, "toy@1")
        copy = second.find_sweep("toy")
        assert copy is not None
        mirrored = second.trials(copy.id)
        assert sum(done.taken.values()) == len(trials) and not done.left_out
        for mine, theirs in zip(trials, mirrored, strict=True):
            for what in ("number", "params", "params_hash", "state", "values", "metrics", "cost", "step", "reason"):
                assert getattr(mine, what) == getattr(theirs, what), what
            assert theirs.origin == "imported:toy@1" and theirs.attempts == 0
            assert (theirs.started_at, theirs.ended_at) == (mine.started_at, mine.ended_at) or mine.started_at is None
        assert bring(second, spec, storage, "toy@1").taken == {}, "once"
        one, other = Searcher(spec), Searcher(spec)
        for mine, theirs in zip(trials, mirrored, strict=True):
            one.tell(mine)
            other.tell(theirs)
        number = len(trials)
        assert one.ask(number, lambda _: None).params == other.ask(number, lambda _: None).params
        again = run_sweep(second, home, spec, make_executor("inline"))
        assert sum(trial.attempts > 0 for trial in again) == 8, "what others trained counts against no budget"
        assert len({trial.params_hash for trial in again}) == len(again), "and is never trained again"


def foreign(storage: str, *, names: bool = True, **attributes: Any) -> optuna.Study:
    """A study that no sweep made: five good trials, a failed and a running one."""
    study = optuna.create_study(study_name="old", storage=storage, directions=["minimize", "maximize"])
    if names:
        with pytest.warns(optuna.exceptions.ExperimentalWarning):
            study.set_metric_names(["cost/flops", "val/accuracy"])
    for number in range(5):
        params = {"actor.lr": 0.1 * (number + 1), "actor.batch": number + 1}
        values = [1e9 * (number + 1), 0.9 - 0.1 * abs(number - 2)]
        study.add_trial(create_trial(params=params, distributions=SPACE, values=values, user_attrs=attributes))
    study.add_trial(create_trial(params={"actor.lr": 0.9, "actor.batch": 8}, distributions=SPACE, state=State.FAIL))
    study.ask()
    return study


def test_a_foreign_study_informs_the_search_and_stays_off_the_front(ledger: Ledger, storage: str) -> None:
    foreign(storage)
    spec = toy_spec()
    done = bring(ledger, spec, storage, "old")
    assert done.taken == {"complete": 5}
    assert done.left_out == {"failed, which may have been the machine's fault": 1, "not finished": 1}
    sweep = ledger.find_sweep("toy")
    assert sweep is not None
    trials = ledger.trials(sweep.id)
    assert trials[1].values == (pytest.approx(0.8), 2e9) and trials[1].cost.flops == 2e9
    assert {trial.origin for trial in trials} == {"imported:old"}
    searcher = Searcher(spec)
    for trial in trials:
        searcher.tell(trial)
        assert searcher._verdict(trial) is Verdict.GOOD
    assert points(sweep, trials) == [], "nothing says how sure its accuracies are"


def test_with_costs_and_errors_it_can_be_on_the_front(ledger: Ledger, storage: str) -> None:
    foreign(storage, standard_errors={"val/accuracy": 0.03}, cost={"flops": 7e9, "tokens": 12})
    bring(ledger, toy_spec(), storage, "old")
    sweep = ledger.find_sweep("toy")
    assert sweep is not None
    found = Frontier.of(sweep, ledger.trials(sweep.id))
    assert [point.number for point in found.front] == [0, 1, 2] and all(point.imported for point in found.front)
    assert found.front[0].errors == (0.03, None) and found.front[0].cost["tokens"] == 12


def test_what_does_not_fit_is_told_at_once(storage: str) -> None:
    study = foreign(storage)
    params = {"actor.lr": 0.5, "actor.batch": 3, "extra": 1.0}
    spaces = {**SPACE, "extra": FloatDistribution(0, 2)}
    study.add_trial(create_trial(params=params, distributions=spaces, values=[1, 1]))
    search = {"actor.lr": {"float": [0.01, 0.35]}, "actor.batch": {"int": [1, 8]}, "actor.shards": {"int": [1, 2]}}
    objectives = [
        {"metric": "val/accuracy", "direction": "minimize"},
        {"metric": "cost/tokens", "direction": "minimize"},
    ]
    with pytest.raises(BadInput) as caught:
        read_study(toy_spec(search=search, objectives=objectives), storage, "old")
    told = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in told][:2] == ["objectives.val/accuracy", "objectives.cost/tokens"]
    assert sum("search.actor.lr: got 0.4" in line for line in told) == 1
    assert any("search.actor.shards: got no value in 3 trials of the study (0, 1, 2)" in line for line in told)
    assert any("search.extra: got a parameter of the study in 1 trial of the study (7)" in line for line in told)
    with pytest.raises(BadInput, match="'none'; need one of \\['old'\\]"):
        read_study(toy_spec(), storage, "none")


def damaged(storage: str, statement: str) -> None:
    with closing(sqlite3.connect(storage.removeprefix("sqlite:///"))) as database, database:
        database.execute(statement)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trial_params SET distribution_json = 'garbage'",
        "UPDATE trial_user_attributes SET value_json = '{oops'",
        "UPDATE trials SET state = 'WAT'",
        "UPDATE studies SET study_name = x'80ff'",
    ],
)
def test_a_damaged_study_is_told(storage: str, damage: str) -> None:
    foreign(storage, note="old")
    damaged(storage, damage)
    with pytest.raises(BadInput, match="--(storage: got sqlite:.*, in which something can't be read|study-name)"):
        read_study(toy_spec(), storage, "old")


VALUES = ("SET value = 'abc'", "SET value = NULL, value_type = 'INF_POS'")


@pytest.mark.parametrize("damage", ["DELETE FROM trial_values", *(f"UPDATE trial_values {each}" for each in VALUES)])
def test_trials_without_their_values_are_left_out(ledger: Ledger, storage: str, damage: str) -> None:
    foreign(storage)
    damaged(storage, damage)
    done = bring(ledger, toy_spec(), storage, "old")
    assert done.taken == {} and done.left_out["without a finite value of each objective"] == 5


def test_partial_takes_what_the_space_has(ledger: Ledger, storage: str) -> None:
    foreign(storage, names=False)
    ways = [{"metric": "cost/flops", "direction": "minimize"}, {"metric": "val/accuracy", "direction": "maximize"}]
    spec = toy_spec(objectives=ways, search={**SEARCH, "actor.batch": {"int": [1, 3]}})
    with pytest.raises(BadInput, match="search.actor.batch: got 4 in 1 trial of the study"):
        read_study(spec, storage, "old")
    done = bring(ledger, spec, storage, "old", partial=True)
    assert done.taken == {"complete": 3} and done.left_out["with params that the space doesn't have"] == 2


def test_a_grown_space_is_exported_with_all_its_values(ledger: Ledger, home: Home, storage: str) -> None:
    run_sweep(
        ledger,
        home,
        toy_spec(search={"actor.batch": {"choice": [1, 2]}}, budget={"trials": 2}),
        make_executor("inline"),
    )
    run_sweep(
        ledger,
        home,
        toy_spec(search={"actor.batch": {"choice": [1, 2, 8]}}, budget={"trials": 1}),
        make_executor("inline"),
    )
    sweep = ledger.find_sweep("toy")
    assert sweep is not None and sweep.version == 2
    export_study(ledger, sweep, storage)
    study = optuna.load_study(study_name="toy@2", storage=storage)
    assert sorted(trial.params["actor.batch"] for trial in study.trials) == [1, 2, 8]
    assert {trial.distributions["actor.batch"].choices for trial in study.trials} == {(1, 2, 8)}
    assert study.trials[0].user_attrs["origin"].startswith("from:toy@1/")


def test_the_commands(platform: Shell) -> None:
    with Ledger.open(f"sqlite:///{platform.home}/ledger.db") as ledger:
        run_sweep(ledger, Home(platform.home), toy_spec(budget={"trials": 3}), make_executor("inline"))
    told = platform("study", "export", "toy", "--storage", "sqlite:///s.db")
    assert told.code == 0 and told.err == "" and "3 trials of toy@1 written as study 'toy@1'" in told.out
    assert platform("study", "export", "toy", "--storage", "s.db").code == 2
    assert platform("study", "export", "none", "--storage", "sqlite:///s.db").code == 2
    arguments = ("study", "import", "toy.yaml", "name=copy", "--storage", "sqlite:///s.db", "--study-name")
    told = platform(*arguments, "toy@1")
    assert told.code == 0 and "copy@1 has 3 complete of study 'toy@1'" in told.out
    assert "next: platform sweep toy.yaml name=copy\n" in told.out, "and not the sweep toy"
    assert [row["origin"] for row in platform("status", "copy", "--json").json["trials"]] == ["imported:toy@1"] * 3
    assert "no complete trial" in platform("pareto", "copy").err, "the toy tells no standard errors"
    assert platform(*arguments, "other").code == 2
    missing = platform("study", "import", "toy.yaml", "--storage", "sqlite:///no.db", "--study-name", "x")
    assert missing.code == 2 and "where there is no file" in missing.err and not Path("no.db").exists()


def test_an_imported_trial_is_marked_wherever_it_is_chosen(platform: Shell) -> None:
    foreign("sqlite:///s.db", standard_errors={"val/accuracy": 0.03})
    told = platform("study", "import", "toy.yaml", "--storage", "sqlite:///s.db", "--study-name", "old")
    assert told.code == 0 and "left out: 1 failed" in told.out
    assert "(knee) (imported)" in platform("pareto", "toy").out
    assert "imported:old, not trained here" in platform("pick", "toy").out
    assert platform("export", "toy", "--knee", "--out", "best.yaml").code == 0
    text = Path("best.yaml").read_text()
    assert "# It was not trained here, but imported:old." in text and "origin: imported:old" in text
    for trial in ("1", "0"):
        assert "imported:old, not trained" in platform("promote", "toy", "--trial", trial, "--unconfirmed").out
    (line,) = [line for line in platform("status", "toy").out.splitlines() if line.startswith("production:")]
    assert "trial 0" in line, "the last choice counts"
