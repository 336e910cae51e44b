"""Bad input on the command line: exit code 2, one line a fault on standard error, nothing written, no traceback."""

from __future__ import annotations

import re
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from run_ledger import Ledger
from shell import TOY, Reply, Shell
from sweep_platform.cli import sweep as sweep_command

AIME = Path(__file__).parents[2] / "sweeps" / "aime.yaml"
FAULT = re.compile(r"\S.*?: got .+; need .+; .+")


def refused(platform: Shell, *arguments: object, **environment: str) -> str:
    """Standard error of a command that must be refused without a trace."""
    before = sorted(Path.cwd().rglob("*"))
    reply = platform(*arguments, **environment)
    assert (reply.code, reply.out) == (2, ""), reply
    assert sorted(Path.cwd().rglob("*")) == before, "something was written"
    assert not platform.home.exists(), "something was written"
    for line in reply.err.splitlines():
        assert FAULT.fullmatch(line), line
    return reply.err


@pytest.mark.parametrize("command", [("validate",), ("sweep", "--executor", "inline")], ids=lambda c: c[0])
@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("budget.trails=3", "override:budget.trails: got unknown key 'trails'; need one of ['trials', "),
        ("budget.trials=many", "override:budget.trials: got 'many'; need an integer"),
        ("config.actor.clip_ratio_low=1.5", "override:config.actor.clip_ratio_low: got 1.5; need less than 1"),
        ("config.actor.ppo_mini_batch_size=7", "override:config.actor.ppo_mini_batch_size: got 7 prompts; need a div"),
        ("config.actor.ppo_max_token_len_per_gpu=10", "tokens, the longest sequence"),
        ("config.rollout.n=1", "override:config.rollout.n: got 1; need at least 2: one response has nothing"),
        ("search.rollout.n.choice=[1]", "search.rollout.n: got one of [1]; need a value that can run (rollout.n: got"),
        ("search.rollout.tensor_model_parallel_size.choice=[2,4]", "need a value that can run"),
        ("data.train=nosuch.jsonl", "override:data.train: got 'nosuch.jsonl'"),
        ("data.train=empty.jsonl", "override:data.train: got 'empty.jsonl'"),
        ("data.train=broken.jsonl", "override:data.train: got broken.jsonl:1"),
        ("data.val=broken.parquet", "override:data.val: got 'broken.parquet'"),
        ("data.val=folder.jsonl", "override:data.val: got 'folder.jsonl'"),
        ("model.path=/no/such/model", "override:model.path: got '/no/such/model'"),
        ("model=nosuch", "override 'model=nosuch': got 'nosuch'; need one of ['smollm2-135m', 'tiny']"),
        ("objectives=[{metric: val/acc, direction: maximize}]", "got 'val/acc'; need a metric that trials report"),
        ("constraints=['perf/peak <= 3']", "override:constraints.0: got 'perf/peak'"),
        ("trainer=os.path", "override:trainer: got 'os.path', which lacks Config"),
        ("budget.trials", "override 'budget.trials': got missing EQUAL"),
    ],
)
def test_a_faulty_spec_leaves_no_trace(platform: Shell, command: tuple[str, ...], override: str, told: str) -> None:
    Path("empty.jsonl").write_text("")
    Path("broken.jsonl").write_text('{"problem": "1+1"\n')
    Path("broken.parquet").write_bytes(b"PAR1 and nothing more")
    Path("folder.jsonl").mkdir()
    name, *options = command
    assert told in refused(platform, name, AIME, override, *options)


def test_all_faults_of_a_spec_at_once_each_where_it_was_written(platform: Shell) -> None:
    Path("data").mkdir()
    Path("data", "mine.yaml").write_text("train: gone.jsonl\nval: arithmetic-aime\n")
    Path("own.yaml").write_text(
        "defaults: [{data: mine}, _self_]\n"
        "name: own\n"
        "objectives: [{metric: val/acuracy, direction: maximize}]\n"
        "config: {rollout: {n: 1}}\n"
        "search: {actor.clip_ratio_low: {float: [0.1, 0.2]}}\n"
    )
    places = [line.partition(": got")[0] for line in refused(platform, "validate", "own.yaml", "seed=-1").splitlines()]
    assert sorted(places) == [
        "data/mine.yaml:train",
        "override:seed",
        "own.yaml:config.rollout.n",
        "own.yaml:objectives.0.metric",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("validate", "nosuch.yaml"), "nosuch.yaml: got no such file; need a .yaml file; there are ['toy']"),
        (("validate", "."), ".: got a folder; need a .yaml file"),
        (("sweep", "toy.yaml", "--executor", "slurm"), "--executor: got 'slurm'; need ray or inline"),
        (("sweep", "toy.yaml", "--address", "127.0.0.1:1"), "--address: got 127.0.0.1:1 (ConnectionRefusedError"),
        (("status",), "ledger: got no file"),
        (("status", "toy"), "ledger: got no file"),
        (("pareto", "toy"), "ledger: got no file"),
        (("pick", "toy"), "ledger: got no file"),
        (("export", "toy", "--knee", "--out", "best.yaml"), "ledger: got no file"),
        (("export", "toy", "--out", "best.yaml"), "export: got none; need one of --trial N, --knee"),
        (("mlflow", "sync", "toy"), "ledger: got no file"),
        (("train", "nosuch.yaml"), "nosuch.yaml: got no such file; need a .yaml file; there are ['toy']"),
        (("train", "toy.yaml"), "toy.yaml: got a sweep spec; need a production file"),
        (("train", "best.yaml", "--name", "../best"), "--name: got '../best'; need letters"),
        (("train", "best.yaml", "actor.lr=fast"), "override:actor.lr: got 'fast'; need a number"),
        (("train", "best.yaml", "actor.shards=2"), "override:actor.shards: got 2; need at most 1"),
    ],
)
def test_faulty_arguments_leave_no_trace(platform: Shell, arguments: tuple[str, ...], told: str) -> None:
    if arguments[:2] == ("train", "best.yaml"):
        Path("best.yaml").write_text("trainer: toybox.trainer\nconfig: {}\n")
    assert told in refused(platform, *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep",),
        ("validate", "toy.yaml", "--nosuch"),
        ("pick", "toy", "--max-cost", "cheap"),
        ("export", "toy", "--knee"),
        ("ui", "--port", "99999"),
        ("nosuch",),
    ],
    ids=" ".join,
)
def test_what_the_parser_refuses_has_the_same_exit_code(platform: Shell, arguments: tuple[str, ...]) -> None:
    reply = platform(*arguments)
    assert (reply.code, reply.out) == (2, "")
    assert reply.err and not platform.home.exists()


def sweep(platform: Shell, **environment: str) -> Reply:
    return platform("sweep", "toy.yaml", "--executor", "inline", **environment)


def test_a_database_that_is_no_ledger_is_left_alone(platform: Shell) -> None:
    platform.home.mkdir()
    path = platform.home / "ledger.db"
    with sqlite3.connect(path) as database:
        database.execute("create table theirs(x)")
    database.close()
    for content in (path.read_bytes(), b"no database at all", b""):
        path.write_bytes(content)
        for reply in (sweep(platform), platform("status"), platform("pareto", "toy", "--json")):
            assert (reply.code, reply.out) == (2, "")
            assert re.fullmatch(r"ledger: got .*ledger\.db.*; need a ledger, .*; .*\n", reply.err)
        assert path.read_bytes() == content
        assert [file.name for file in platform.home.iterdir()] == ["ledger.db"]


def test_a_locked_ledger_is_told(platform: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    platform.home.mkdir()
    path = platform.home / "ledger.db"
    Ledger.open(f"sqlite:///{path}").close()
    monkeypatch.setattr(Ledger, "open", partial(Ledger.open, busy_s=0.1))
    monkeypatch.setattr(sweep_command, "PATIENCE_S", 0.3)
    with sqlite3.connect(path) as other:
        other.execute("begin immediate")
        reply = sweep(platform)
    other.close()
    assert (reply.code, reply.out) == (1, ""), "the input isn't at fault"
    assert "ledger: got" in reply.err and "locked by another process" in reply.err


@pytest.mark.parametrize(
    "environment",
    [
        {"PLATFORM_HOME": "toy.yaml"},
        {"PLATFORM_HOME": "/proc/nosuch"},
        {"PLATFORM_LEDGER": "nosuch"},
        {"PLATFORM_LEDGER": "mysql://there/db"},
    ],
    ids=str,
)
def test_a_place_that_cannot_hold_a_ledger(platform: Shell, environment: dict[str, str]) -> None:
    reply = sweep(platform, **environment)
    assert (reply.code, reply.out) == (2, "")
    assert re.fullmatch(r"ledger: got .+; need .+; .+\n", reply.err)
    assert Path("toy.yaml").read_text() == TOY


def test_more_trials_at_once_than_cores_are_noted(platform: Shell) -> None:
    told = platform("validate", "toy.yaml", "budget.concurrency=3", "hardware.cores=2")
    assert told.code == 0 and "note: toy.yaml: budget.concurrency: 3 trials at once share 2 cores here" in told.err
    assert "note" not in platform("validate", "toy.yaml", "budget.concurrency=2", "hardware.cores=2").err
