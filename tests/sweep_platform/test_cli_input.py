"""Bad input on the command line: exit code 2, one line a fault on standard error, nothing written, no traceback."""

from __future__ import annotations

import re
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from dapo.machine import count_devices
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
        ("model=nosuch", "override 'model=nosuch': got 'nosuch'; need one of ['qwen2.5-32b', 'qwen2.5-7b', "),
        ("objectives=[{metric: val/acc, direction: maximize}]", "got 'val/acc'; need a metric that trials report"),
        ("constraints=['perf/peak <= 3']", "override:constraints.0: got 'perf/peak'"),
        ("trainer=os.path", "override:trainer: got 'os.path', which lacks Config"),
        ("budget.trials", "override 'budget.trials': got missing EQUAL"),
        (
            "config.actor.fsdp_config.npu_enable_async_allreduce=true",
            "override:config.actor.fsdp_config.npu_enable_async_allreduce: got True; need no such key: gradients are",
        ),
        (
            "+config.trainer.use_hccl_checkpoint=true",
            "override:config.trainer.use_hccl_checkpoint: got True; need no such key: on NPUs all that processes ex",
        ),
    ],
)
def test_a_faulty_spec_leaves_no_trace(platform: Shell, command: tuple[str, ...], override: str, told: str) -> None:
    Path("empty.jsonl").write_text("")
    Path("broken.jsonl").write_text('{"problem": "1+1"\n')
    Path("broken.parquet").write_bytes(b"PAR1 and nothing more")
    Path("folder.jsonl").mkdir()
    name, *options = command
    assert told in refused(platform, name, AIME, override, *options)


@pytest.mark.skipif(count_devices("cuda") != 0, reason="a machine with a GPU has what is missing here")
def test_a_device_that_is_not_here_is_told_before_anything_starts(platform: Shell) -> None:
    told = "trainer.device: got 'cuda'; need a cuda device; there is none here; "
    assert refused(platform, "sweep", AIME, "config.trainer.device=cuda").startswith(told)
    Path("a.yaml").write_text("trainer: dapo\nconfig: {trainer: {device: cuda}}\n")
    assert refused(platform, "train", "a.yaml").startswith(f"a.yaml:config.{told}")
    over = refused(platform, "sweep", AIME, "config.trainer.nnodes=2", "hardware.devices=2")
    assert over.startswith("trainer.nnodes: got 2; need 1 on this machine alone, `torchrun")
    reply = platform("validate", AIME, "config.trainer.device=cuda")
    assert reply.code == 0
    assert reply.err == f"note: not on this machine: {told}correct it, or name a cluster that can by --address\n"


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


def test_faults_of_types_hide_none_that_the_trainer_finds(platform: Shell) -> None:
    Path("a.yaml").write_text("trainer: dapo\nconfig: {}\n")
    Path("own.yaml").write_text(
        TOY.replace("toybox.trainer", "dapo").partition("search:")[0] + "search: {actor.ppo_epochs: {choice: [1, 2]}}\n"
    )
    typed = ("actor.optim.lr=0", "trainer.test_at=[0.5,2]", "data.prompt_template=hello", "rollout.m=3")
    found = ("data.train=/nowhere.jsonl", "rollout.n=1", "trainer.device=tpu")
    # Without statistic, the threshold would be one that nothing reads.
    hung = ("algorithm.filter_groups.statistic=median", "algorithm.filter_groups.threshold=0.3")

    def places(*command: str, config: str) -> list[str]:
        overrides = [text if text.startswith("data.") else f"{config}{text}" for text in (*typed, *found, *hung)]
        told = refused(platform, *command, *overrides)
        return sorted(line.partition(": got")[0].partition(config or ":")[2] for line in told.splitlines())

    keys = [text.partition("=")[0] for text in (*typed, *found, hung[0])]
    keys[1] = "trainer.test_at.1"
    assert places("train", "a.yaml", config="") == sorted(keys)
    keys = [key for key in keys if not key.startswith("data.")]
    assert [key for key in places("validate", "own.yaml", config="config.") if key] == sorted(keys)
    told = refused(platform, "train", "a.yaml", "=3", "rollout.n=1")
    assert len(told.splitlines()) == 2 and "override:rollout.n: got 1; need at least 2" in told
    told = refused(platform, "validate", "own.yaml", "config.actor.optim.lr=0", "data.train=/nowhere.jsonl")
    assert "override:data.train: got '/nowhere.jsonl'" in told and "override:config.actor.optim.lr: got 0" in told


def test_what_is_left_and_is_not_valid_either_is_told_by_its_types_alone(platform: Shell) -> None:
    """Without its function, which is at fault, the custom grader is none."""
    Path("a.yaml").write_text("trainer: dapo\nconfig: {}\n")
    settings = ("reward.grader=custom", "reward.custom_reward_function=[1]", "rollout.n=1")
    told = refused(platform, "train", "a.yaml", *settings)
    assert told == "override:reward.custom_reward_function: got [1]; need a string; set it to such a value\n"


@pytest.mark.parametrize(
    ("confirm", "told"),
    [
        (
            "data.val: val.jsonl",
            ["data.val: got 'val.jsonl', the search's own; need problems that no trial is"],
        ),
        ("data.val: train.jsonl", ["data.val: got 'train.jsonl'; need another set than data.train"]),
        ("data.val: more.jsonl", ["data.val: got 'more.jsonl', all 4 problems of which stand in data.train"]),
        (
            "data.val: copy.jsonl",
            ["data.val: got 'copy.jsonl', 3 of whose 3 problems the search evaluates on"],
        ),
        (
            "data.val: mixed.jsonl",
            ["data.val: got 'mixed.jsonl', 2 of whose 4 problems the search evaluates on (3, 4)"],
        ),
        ("data.val: gone.jsonl", ["data.val: got 'gone.jsonl', no file"]),
        ("data.prompt_template: hello", ["data.prompt_template: got 'hello'; need {problem} in prompt_template"]),
        ("rollout.n: 1", ["rollout.n: got 1; need at least 2"]),
        ("actor.optim.lr: 0.5", ["actor.optim.lr: got 0.5; need 0.0001, as in the search: a run that is trained"]),
        ("trainer.total_training_steps: 3", ["trainer.total_training_steps: got 3; need 30, as in the search"]),
        ("trainer.seed: 7", []),
        ("data.val: new.jsonl", []),
        ("rollout.val_kwargs.n: 8", []),
    ],
)
def test_confirming_runs_are_checked_and_hold_out_what_the_search_sees(
    platform: Shell, confirm: str, told: list[str]
) -> None:
    sets = {"train": range(8), "more": range(4), "val": (20, 21, 22), "mixed": (30, 31, 20, 22), "new": (40, 41)}
    for name, numbers in {**sets, "copy": (22, 20, 21)}.items():
        rows = [f'{{"problem": "{number}  + 1", "answer": {number + 1}}}\n' for number in numbers]
        Path(f"{name}.jsonl").write_text("".join(rows))
    spec = TOY.replace("toybox.trainer", "dapo").partition("search:")[0] + (
        "search: {rollout.max_num_seqs: {choice: [64, 512]}}\n"
        f"data: {{train: train.jsonl, val: val.jsonl}}\nconfirm: {{config: {{{confirm}}}}}\n"
    )
    Path("own.yaml").write_text(spec)
    searched = spec.replace("search: {", "search: {data.val: {choice: [val.jsonl, arithmetic-aime]}, ")
    searched = searched.replace("jsonl, val: val.jsonl", "jsonl, val: new.jsonl")  # which no trial is evaluated on
    if not told:
        assert platform("validate", "own.yaml").code == 0
        Path("own.yaml").write_text(searched)
        assert platform("validate", "own.yaml").code == 0
        return
    lines = refused(platform, "validate", "own.yaml").splitlines()
    assert len(lines) == len(told), lines
    for line, start in zip(lines, told, strict=True):
        assert line.startswith(f"own.yaml:confirm.config.{start}"), line
    Path("own.yaml").write_text(searched)
    assert told[0] in refused(platform, "validate", "own.yaml")


SECTIONS = [
    (
        ("data.prompt_template=hello",),
        "override:{}data.prompt_template: got 'hello'; need {{problem}} in prompt_template",
    ),
    (
        ("reward.custom_reward_function=own:f",),
        "override:{}reward.custom_reward_function: got grader: 'integer', custom_reward_function: 'own:f'; need ",
    ),
    (
        ("rollout.val_kwargs.preset=aime", "rollout.val_kwargs.n=4"),
        "override:{}rollout.val_kwargs.preset: got preset: 'aime', n: 4; need n: 32, the preset aime's",
    ),
    (
        ("trainer.total_epochs=1",),
        "override:{}trainer.total_epochs: got total_training_steps: 20, total_epochs: 1; need one length",
    ),
]
"""Faults of a section as a whole: place and `got` are of the fields that it names."""


@pytest.mark.parametrize(("overrides", "told"), SECTIONS)
def test_a_fault_of_a_section_names_the_fields_and_the_override(
    platform: Shell, overrides: tuple[str, ...], told: str
) -> None:
    settings = "{trainer: {total_training_steps: 20}, reward: {grader: integer}}"
    Path("best.yaml").write_text(f"trainer: dapo\nconfig: {settings}\n")
    assert refused(platform, "train", "best.yaml", *overrides).startswith(told.format(""))
    Path("own.yaml").write_text(TOY.replace("toybox.trainer", "dapo").partition("search:")[0])
    with Path("own.yaml").open("a") as file:
        file.write(f"search: {{rollout.n: {{choice: [4, 8]}}}}\nconfig: {settings}\n")
    spec_keys = [key if key.startswith("data.") else f"config.{key}" for key in overrides]
    prefix = "" if overrides[0].startswith("data.") else "config."
    assert told.format(prefix) in refused(platform, "validate", "own.yaml", *spec_keys)


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
        (("export", "production", "--out", "best.yaml"), "ledger: got no file"),
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
