"""Loading a spec: what composes, and every fault a user can write, all at once, in one form."""

import copy
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweep_platform.errors import BadInput
from sweep_platform.spec import SweepSpec, check_spec, load_spec

ROOT = Path(__file__).parents[2]
AIME = ROOT / "sweeps" / "aime.yaml"
SMALL = """
name: small
objectives: [{metric: val/accuracy, direction: maximize}]
search: {rollout.n: {choice: [4, 8]}}
"""


@pytest.fixture
def spec_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec of one's own, in a folder that has no groups."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "own.yaml"
    path.write_text(SMALL)
    return path


def faults(path: Path | str, *overrides: str) -> list[str]:
    with pytest.raises(BadInput) as caught:
        load_spec(path, overrides)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults), "a fault is one line"
    for line in lines:
        assert re.fullmatch(r"\S.*?: got .+; need .+; .+", line), line
    return lines


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.name)
def test_each_packaged_spec_is_valid(path: Path) -> None:
    spec = load_spec(path)
    check_spec(spec)
    assert SweepSpec.from_dict(spec.to_dict()) == spec


def test_the_default_sweep_is_what_the_documents_say() -> None:
    spec = load_spec(AIME)
    assert [(o.metric, o.direction) for o in spec.objectives] == [
        ("val/accuracy", "maximize"),
        ("cost/flops", "minimize"),
    ]
    assert (spec.budget.trials, spec.budget.concurrency, spec.budget.wall_clock) == (16, 2, 600)
    assert spec.priors[0].name == "published-dapo"
    assert spec.config["algorithm"]["filter_groups"]["on_exhausted"] == "train_partial"


def test_overrides_as_in_hydra() -> None:
    spec = load_spec(
        AIME,
        [
            "budget.trials=4",
            "model=tiny",
            "sampler=gp",
            "config.actor.optim.lr=3e-4",
            "budget.flops=1e15",
            "search.trainer.total_training_steps.choice=[2,4]",
            "~search.data.gen_batch_size",
            "search.rollout.n={int: [4, 16]}",
            "budget.wall_clock=1h30m",
        ],
    )
    assert spec.budget.trials == 4
    assert spec.budget.flops == 1e15
    assert spec.budget.wall_clock == 5400
    assert spec.sampler.name == "gp"
    assert spec.config["actor"]["optim"]["lr"] == 3e-4
    assert spec.search["trainer.total_training_steps"].samples() == (2, 4)
    assert "data.gen_batch_size" not in spec.search
    assert spec.search["rollout.n"].samples() == (4, 16)


def test_a_spec_of_ones_own_uses_the_packaged_groups_and_its_own(spec_file: Path) -> None:
    (spec_file.parent / "data").mkdir()
    (spec_file.parent / "data" / "mine.yaml").write_text("train: mine.jsonl\nval: mine.jsonl\n")
    spec_file.write_text("defaults: [{model: tiny}, {data: mine}, _self_]" + SMALL)
    assert load_spec(spec_file).data["train"] == "mine.jsonl"
    assert load_spec(spec_file, ["data=arithmetic"]).data["train"] == "arithmetic"
    spec_file.write_text(f"model: tiny\ndata: mine{SMALL}")
    spec = load_spec(spec_file)
    assert (spec.model["path"], spec.data["train"]) == ("tiny", "mine.jsonl")
    assert load_spec(spec_file, ["model=some/folder"]).model["path"] == "some/folder"
    with pytest.raises(BadInput, match=r"own\.yaml:data\.train: got .*mine\.jsonl"):
        check_spec(spec, source="own.yaml")


def test_an_example_of_own_files_loads_beside_its_data(tmp_path: Path) -> None:
    spec = load_spec(AIME, ["data=own-files"])
    assert spec.data["train"].endswith((".jsonl", ".parquet"))


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("data.val=arithmetic-heldout", "override:data.val"),
        ("data.train=arithmetic-heldout", "override:data.train"),
        ("search.data.val.choice=[arithmetic-aime,arithmetic-heldout]", "override:search.data.val.choice"),
    ],
)
def test_the_held_out_split_is_no_part_of_a_search(override: str, place: str) -> None:
    told = faults(AIME, override)
    assert told[0].startswith(f"{place}: got 'arithmetic-heldout'; need what the search may see")
    assert len(told) == 1


def test_a_search_with_a_condition_falls_back_to_the_base_config(spec_file: Path) -> None:
    spec_file.write_text(
        SMALL.replace("search: {", "search: {data.val: {choice: [arithmetic-aime], when: 'rollout.n == 4'}, ")
        + "data: {val: arithmetic-heldout}"
    )
    assert [line.partition(": got")[0] for line in faults(spec_file)] == ["own.yaml:data.val"]


def test_models_by_name_are_choices_of_their_group() -> None:
    spec = load_spec(AIME, ["model=smollm2-135m"])
    assert spec.model["path"] == "smollm2-135m"
    check_spec(spec, source="aime.yaml")
    assert load_spec(AIME, ["model=some/model", "model.revision=v1"]).model["revision"] == "v1"


def test_all_faults_at_once() -> None:
    lines = faults(
        AIME,
        "budget.trial=3",
        "algorithm.x=3",
        "seed=-1",
        "objectives=[{metric: val/acuracy, direction: up}]",
        "model.pth=x",
        "config.actor.clip_ratio_low=abc",
        "hardware.devices=0",
        "sampler=bayes",
        "priors=[published-dap]",
        "constraints=['actor.clip_ratio_lo <= 1', 'perf/memory <= 3', 'a +']",
        "search.rollout.m.choice=[1]",
    )
    text = "\n".join(lines)
    for part in (
        "budget.trial: got unknown key 'trial'",
        "did you mean trials?",
        "write config.algorithm: a trainer's sections go under config",
        "seed: got -1",
        "did you mean val/accuracy?",
        "direction: got 'up'",
        "model.pth: got unknown key 'pth'",
        "config.actor.clip_ratio_low: got 'abc'; need a number",
        "hardware.devices: got 0",
        "sampler.name: got 'bayes'",
        "did you mean published-dapo?",
        "did you mean actor.clip_ratio_low?",
        "constraints.1: got 'perf/memory'",
        "constraints.2: got 'a +'",
        "search.rollout.m: got unknown path 'rollout.m'",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("search.rollout.n.choice=[4,four]", "search.rollout.n.choice: got 'four'; need a valid integer"),
        ("search.rollout.n.choice=['4']", "got '4'"),
        ("search.rollout.n.choice=[0,4]", "search.rollout.n.choice: got 0; need greater than or equal to 1"),
        ("search.rollout.n={float: [4, 8]}", "search.rollout.n.float: got 4.0; need a valid integer"),
        ("search.actor.clip_ratio_low.float=[0.1,1.5]", "got 1.5; need less than 1"),
        ("search.algorithm.filter_groups.metric.choice=[acc,3]", "got 3; need a valid string"),
        ("search.algorithm.filter_groups.statistic.choice=[spread,median]", "got 'median'"),
        ("search.actor.clip_ratio_low={floats: [0, 1]}", "need one of choice"),
        ("search.actor.clip_ratio_low.steps=3", "did you mean step?"),
        ("search.filter_groups.metric={choice: [acc]}", "did you mean algorithm.filter_groups.metric?"),
        ("search.algorithm.filter_groups={choice: [acc]}", "got unknown path 'algorithm.filter_groups'"),
        ("search.rollout.n={choice: [4], when: 'statistic == 1'}", "did you mean algorithm."),
        ("search.rollout.n={choice: [4], when: 'model.path() == 1'}", "when: got"),
        ("search.rollout.n={choice: [4], when: 'model.path < 1'}", "need values that compare"),
        ("objectives=[]", "objectives: got []; need at least 1"),
        ("objectives=[{metric: val/accuracy, direction: maximize, weight: 1}]", "unknown key 'weight'"),
        ("budget.wall_clock=soon", "need seconds or a duration such as 10m, 1h30m, 90s"),
        ("budget.wall_clock=0s", "budget.wall_clock: got"),
        ("budget.concurrency=two", "budget.concurrency: got 'two'; need an integer"),
        ("budget.trials=2.5", "budget.trials: got 2.5; need an integer"),
        ("name='a b'", "name: got 'a b'"),
        ("trainer=verlo", "trainer: got 'verlo'; need one of ['dapo'"),
        ("trainer.seed=1", "put settings of the run under config.trainer"),
        ("config.model.path=x", "move it out of config"),
        ("config.actor=3", "config.actor: got 3; need a mapping"),
        ("config=3", "config: got 3"),
        ("model=nosuch", "need one of ['qwen2.5-32b', 'qwen2.5-7b', 'qwen2.5-math-7b', 'smollm2-135m', 'tiny'"),
        ("budget.trials=1,2", "put the values under search"),
        ("budget.trials", "need key=value"),
        ("=3", "need key=value"),
        ("~nosuch", "got a key that is not there"),
        ("~search.nosuch", "name a searched path"),
        ("model@x=tiny", "need key=value"),
        ("name=${nosuch}", "need a value that resolves"),
        ("name=???", "need a value that resolves"),
        ("priors=[{rollout: {tensor_model_parallel_size: 3}}]", "got 3; need one of [1, 2], as search says"),
        ("priors=[{rollout: {k: 3}}]", "unknown path 'rollout.k'"),
        ("priors=[base,base]", "need each prior once"),
        ("priors=3", "priors: got 3; need a list"),
        ("priors=[3]", "priors.0: got 3"),
        ("priors=[../aime]", "need one of ['base'"),
        ("constraints=[3]", "constraints.0: got 3; need a string"),
        ("budget.flops=-1", "budget.flops: got -1"),
        ("budget.min_gain=1", "budget.min_gain: got 1"),
        ("+pruning={rungs: [0.5, 0.25]}", "pruning.rungs"),
        ("+pruning={reduction: 1}", "pruning.reduction: got 1"),
        ("hydra.run.dir=x", "hydra: got unknown key 'hydra'"),
        ("trainer=os.path", "trainer: got 'os.path', which lacks Config, preflight, prepare, train"),
    ],
)  # fmt: skip
def test_each_fault_names_its_key_and_what_is_needed(override: str, told: str) -> None:
    assert told in "\n".join(faults(AIME, *override.replace("] b", "]\nb").splitlines()))


def test_conditions_that_lead_back_to_themselves_are_refused() -> None:
    lines = faults(
        AIME,
        "search.rollout.n={choice: [4, 8], when: 'data.gen_batch_size == 16'}",
        "search.data.gen_batch_size={choice: [16, 32], when: 'rollout.n == 4'}",
        "search.data.train_batch_size={choice: [16, 32], when: 'data.train_batch_size == 16'}",
    )
    assert len([line for line in lines if "in a circle" in line]) == 3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "own.yaml: got an empty file"),
        (b"\xff\xfe\x00\x01", "own.yaml: got byte 0xff at 0; need UTF-8 text"),
        (b"a: 1\nb: [1, 2\nc: 3\n", "own.yaml:3:2: got "),
        (b"name: a\nname: b\n", "own.yaml:2:1: got found duplicate key name"),
        (b"- 1\n- 2\n", "own.yaml: got list; need a mapping"),
        (b"just words", "own.yaml: got str"),
        (b"\ta: 1", "own.yaml:1:1: got "),
        (b"a: !!python/object:os.system 1", "own.yaml:1:4: got "),
        (b"1: 2", "own.yaml: got the key 1"),
        (b"\x00", "own.yaml"),
        (b"defaults: 3\nname: a", "own.yaml:defaults: got 3"),
        (b"defaults: [{model: nosuch}, _self_]\nname: a", "own.yaml:defaults.model: got 'nosuch'"),
        (b"defaults: [nosuch, _self_]\nname: a", "own.yaml:defaults: got 'nosuch'; need a spec of its folder, or"),
        (b"defaults: [{modle: tiny}, _self_]\nname: a", "own.yaml:defaults: got 'modle/tiny'; need a spec of its"),
        (b"defaults: [own, _self_]\nname: a", "own.yaml:defaults: got an entry that leads back to this file"),
        (b"hydra: {run: {dir: x}}\nname: a", "own.yaml:hydra: got "),
        (b"defaults: [{model: tiny}]\nname: a", "add `- _self_`"),
        (b"name: x\nsearch: {}\nobjectives: []", "search: got {}; need at least 1 entry"),
        (
            b"a: &a [1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\n"
            b"d: &d [*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d]",
            "got a larger or an endless tree",
        ),
        (b"name: ${oc.env:NO_SUCH_VARIABLE}\n", "NO_SUCH_VARIABLE"),
        (b"name: ${name}\n", "own.yaml"),
        (b"a: &a [*a]\n", "own.yaml"),
        (b"name: !!int x\n", "own.yaml: got invalid literal"),
        (b"? [a]\n: 1\n", "own.yaml"),
        (b"name: x\n", "objectives: got nothing; need a value"),
        (
            b"trainer: dapo\nprovenance: {}\nconfig: {}",
            "own.yaml: got a production file; need a sweep spec; run it with",
        ),
        (b"[" * 1500, "own.yaml"),
    ],
)
def test_files_that_are_no_spec(spec_file: Path, content: bytes, told: str) -> None:
    spec_file.write_bytes(content)
    assert told in "\n".join(faults("own.yaml"))


def test_paths_that_are_no_file(spec_file: Path) -> None:
    assert "got no such file" in faults("nosuch.yaml")[0]
    assert "there are ['own']" in faults("nosuch.yaml")[0]
    assert "got a folder" in faults(spec_file.parent)[0]
    shutil.copy(spec_file, "own.yml")
    assert "need .yaml" in faults("own.yml")[0]
    assert "got no such file" in faults("no/such/folder/x.yaml")[0]
    assert "need a file that can be read" in faults(f"{'x' * 300}.yaml")[0]


def test_a_name_and_a_folder_may_hold_anything(tmp_path: Path) -> None:
    folder = tmp_path / "it's, a [folder] = x"
    folder.mkdir()
    path = folder / "my own, spec=1.yaml"
    path.write_text("defaults: [{model: tiny}, _self_]" + SMALL)
    assert load_spec(path, ["budget.trials=3"]).budget.trials == 3


def test_a_fault_is_told_where_it_was_written(spec_file: Path) -> None:
    (spec_file.parent / "data").mkdir()
    (spec_file.parent / "data" / "mine.yaml").write_text("train_batch_size: 0\n")
    spec_file.write_text("defaults: [{data: mine}, _self_]" + SMALL)
    assert faults("own.yaml")[0].startswith("data/mine.yaml:train_batch_size: got 0")
    spec_file.write_text("data: {train_batch_size: 0}" + SMALL)
    assert faults("own.yaml")[0].startswith("own.yaml:data.train_batch_size: got 0")
    spec_file.write_text(SMALL)
    assert faults("own.yaml", "data.train_batch_size=0")[0].startswith("override:data.train_batch_size: got 0")
    (spec_file.parent / "data" / "mine.yaml").write_text("train: a\ntrain: b\n")
    assert faults("own.yaml", "data=mine")[0].startswith("data/mine.yaml:2:1: got found duplicate key")


def test_priors_are_completed_from_the_base_config_and_tell_what_they_leave_out(spec_file: Path) -> None:
    (spec_file.parent / "priors").mkdir()
    (spec_file.parent / "priors" / "known.yaml").write_text("actor:\n  clip_ratio_low: 0.1\nrollout.n: 4\n")
    spec_file.write_text(
        SMALL.replace("search: {", "search: {trainer.total_training_steps: {choice: [30]}, ")
        + "priors: [known, base, {rollout.n: 8}]\n"
    )
    spec = load_spec(spec_file)
    assert [prior.name for prior in spec.priors] == ["known", "base", "inline-2"]
    assert spec.priors[0].params == {"trainer.total_training_steps": 30, "rollout.n": 4}
    assert spec.notes == ["priors.known: actor.clip_ratio_low is not searched; its value 0.1 is not used"]


def test_a_trial_config_is_whole_valid_and_threaded(spec_file: Path) -> None:
    spec = load_spec(spec_file, ["hardware.cores=8", "budget.concurrency=3", "seed=5"])
    config = spec.trial_config({"rollout.n": 4})
    assert config["rollout"]["n"] == 4
    assert spec.base["rollout"]["n"] == 8
    assert config["trainer"]["num_threads"] == 2
    assert config["trainer"]["seed"] == 5
    assert load_spec(spec_file, ["config.trainer.num_threads=1"]).trial_config({})["trainer"]["num_threads"] == 1
    assert load_spec(spec_file, ["config.trainer.seed=9", "seed=5"]).base["trainer"]["seed"] == 9


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every node below the root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, value in items for place in ((*path, key), *places(value, (*path, key)))]


WRITTEN = yaml.safe_load(AIME.read_text())
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(max_examples=30, deadline=None)
@given(place=st.sampled_from(places(WRITTEN)), value=ANYTHING)
@example(place=("config", "algorithm", "filter_groups"), value={"\n": None})
@example(place=("defaults", 0), value={"": None})
@example(place=("defaults", 0), value={"override /": "tiny"})
@example(place=("defaults", 0), value="")
def test_any_change_of_a_spec_loads_or_is_a_fault(place: tuple[Any, ...], value: Any) -> None:
    tree = copy.deepcopy(WRITTEN)
    node = tree
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "changed.yaml"
        path.write_text(yaml.safe_dump(tree, allow_unicode=True), "utf-8")
        try:
            load_spec(path)
        except BadInput as error:
            assert all(": got " in str(fault) and "\n" not in str(fault) for fault in error.faults)


@settings(max_examples=25, deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), min_size=1, max_size=20))
def test_any_override_loads_or_is_a_fault(text: str) -> None:
    try:
        load_spec(AIME, [text])
    except BadInput as error:
        assert all(": got " in line for line in str(error).splitlines() if line)


def test_a_value_for_what_is_searched_is_refused() -> None:
    with pytest.raises(BadInput, match=r"override:config.trainer.total_training_steps: got a value .*; .*~search"):
        load_spec(AIME, ["config.trainer.total_training_steps=2"])
    assert load_spec(AIME, ["config.trainer.total_training_steps=2", "~search.trainer.total_training_steps"])


def test_a_grid_has_no_continuous_range() -> None:
    with pytest.raises(BadInput, match="threshold: got a continuous range; need a finite one"):
        load_spec(AIME, ["sampler=grid"])
    assert load_spec(AIME, ["sampler=grid", "+search.algorithm.filter_groups.threshold.step=0.1"])
