"""From `model.path` to a folder: names, folders, ids of the hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dapo.batch import Fault
from dapo.config import Config
from dapo.errors import DataError, ModelError
from dapo.model_folder import fetch, find_model, is_hub_id, lacking, resolve_model
from dapo.preflight import preflight
from loopback_hub import COMMIT, serve

RESOLVE = """
import sys
from dapo.errors import ModelError
from dapo.model_folder import find_model, resolve_model
name, revision = sys.argv[1], sys.argv[2] or None
print(find_model(name, revision))
try:
    print(resolve_model(name, revision))
except ModelError as error:
    print(error)
print(find_model(name, revision))
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("Qwen/Qwen3-0.6B", True),
        ("a/b", True),
        ("org-1/name_2.x", True),
        ("tiny", False),
        ("a/b/c", False),
        ("./a", False),
        ("/a/b", False),
        ("a/", False),
        ("a/..", False),
        ("a--b/c", False),
        ("a b/c", False),
        ("https://host/a", False),
        ("a/b.", False),
    ],
)
def test_what_reads_as_an_id(path: str, expected: bool) -> None:
    assert is_hub_id(path) is expected


def test_a_folder_comes_before_an_id_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("models/mine")
    (tmp_path / "models" / "mine").mkdir(parents=True)
    assert not is_hub_id("models/mine")
    assert resolve_model("models/mine") == find_model("models/mine") == Path("models/mine")


def test_a_named_model_that_isnt_here_is_found_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path))
    assert find_model("smollm2-135m") is None


def test_what_a_folder_lacks(model_folder: Path) -> None:
    assert lacking(model_folder) == []
    weights = model_folder / "model.safetensors"
    weights.rename(model_folder / "model-00001-of-00002.safetensors")
    assert lacking(model_folder) == ["model.safetensors"]
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (model_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert lacking(model_folder) == ["model-00002-of-00002.safetensors"]
    (model_folder / "tokenizer.json").unlink()
    assert lacking(model_folder) == ["tokenizer.json", "model-00002-of-00002.safetensors"]


@pytest.mark.parametrize(
    ("name", "revision", "message"),
    [
        ("nosuch", None, "name: got 'nosuch'; need tiny, smollm2-135m, or the id `owner/name`"),
        ("tiny", "main", "--revision: got 'main'; need a model on the hub"),
        ("/tmp", None, "which is here already"),
    ],
)
def test_what_cannot_be_fetched_is_told(name: str, revision: str | None, message: str) -> None:
    with pytest.raises(DataError) as caught:
        fetch(name, revision)
    assert message in str(caught.value)


def resolved(name: str, revision: str, cache: Path, endpoint: str) -> tuple[str, str, str]:
    """What is found before, the folder or the error, and what is found then, in a process of its own."""
    environment = {
        **os.environ,
        "HF_HUB_CACHE": str(cache),
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "0",
    }
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE, name, revision], env=environment, capture_output=True, text=True, check=True
    )
    before, found, after = done.stdout.splitlines()
    return before, found, after


@pytest.fixture
def published(model_folder: Path) -> Path:
    """A repository with more in it than a model needs."""
    for name in ("pytorch_model.bin", "modeling_mine.py", "onnx/model.json", "original/model.safetensors", "README.md"):
        (model_folder / name).parent.mkdir(exist_ok=True)
        (model_folder / name).write_text("not wanted")
    (model_folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    return model_folder


def test_an_id_is_downloaded_once_without_code_or_pickles(published: Path, tmp_path: Path) -> None:
    with serve(published, "some/model", ("main", "v1")) as (endpoint, asked):
        before, found, after = resolved("some/model", "v1", tmp_path / "hub", endpoint)
        assert before == "None"
        assert found == after
        assert Path(found).name == COMMIT
        names = {str(path.relative_to(found)) for path in Path(found).rglob("*") if path.is_file()}
        assert names == {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "chat_template.jinja",
        }
        assert not [path for path in asked if path.endswith((".bin", ".py"))]
        asked.clear()
        assert resolved("some/model", "v1", tmp_path / "hub", endpoint) == (found, found, found)
        assert asked == []


def test_an_id_without_revision_is_the_main_branch_and_stays_it(published: Path, tmp_path: Path) -> None:
    with serve(published, "some/model") as (endpoint, _):
        _, found, _ = resolved("some/model", "", tmp_path / "hub", endpoint)
    assert Path(found).name == COMMIT
    assert resolved("some/model", "", tmp_path / "hub", "http://127.0.0.1:1") == (found, found, found)


def test_a_repository_without_safetensors_is_refused(published: Path, tmp_path: Path) -> None:
    (published / "model.safetensors").unlink()
    with serve(published, "some/model") as (endpoint, _):
        _, told, after = resolved("some/model", "", tmp_path / "hub", endpoint)
    assert told.startswith("model.path: got 'some/model', without model.safetensors; need weights as safetensors")
    assert after == "None"


@pytest.mark.parametrize("name", ["some/other", "some/model"])
def test_no_network_and_no_such_model_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    endpoint = "http://127.0.0.1:1"
    if name == "some/other":
        (tmp_path / "empty").mkdir()
        with serve(tmp_path / "empty", "some/model") as (address, _):
            _, told, _ = resolved(name, "", tmp_path / "hub", address)
    else:
        _, told, _ = resolved(name, "v2", tmp_path / "hub", endpoint)
    assert told.startswith(f"model.path: got '{name}")
    assert "no folder here, and the hub sends nothing (" in told
    assert told.endswith("or download it where there is a network and name its folder")


def test_a_model_that_cannot_be_resolved_ends_the_run(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    from dapo.prepare import prepare

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="the hub sends nothing"):
        prepare(make_config(model={"path": "nosuch-owner/nosuch-model"}))


def faults(**model: str) -> dict[str, Fault]:
    return {fault.key: fault for fault in preflight(Config.model_validate({"model": model}))}


def test_preflight_knows_names_and_ids_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert faults(path="smollm2-135m") == {}
    assert faults(path="nosuch-owner/nosuch-model", revision="v1") == {}
    assert "id `owner/name`" in faults(path="nosuch")["model.path"].need
    assert "which is no folder" in faults(path="owner--x/name")["model.path"].got
    revision = faults(path="tiny", revision="v1")["model.revision"]
    assert (revision.got, revision.do) == ("'v1'", "leave it out")
    assert faults(path="nosuch", revision="v1").keys() == {"model.path", "model.revision"}


def test_preflight_checks_the_heads_of_a_named_model() -> None:
    tree = {"model": {"path": "smollm2-135m"}, "rollout": {"tensor_model_parallel_size": 2}}
    (fault,) = preflight(Config.model_validate(tree), 2)
    whole = "a divisor of the model's 9 attention heads that divides its 3 key-value heads or is a multiple of them"
    assert fault.need == whole


def test_damaged_weights_are_told_before_the_run(model_folder: Path) -> None:
    weights = model_folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (model_folder / "tokenizer.json").write_text("{oops")
    (first, second) = [fault for fault in preflight(Config.model_validate({"model": {"path": str(model_folder)}}))]
    assert (first.key, first.need) == ("model.path", "whole safetensors")
    assert str(weights) in first.got
    assert "tokenizer.json: can't be read" in second.got


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_quantised_weights_are_refused_as_such(model_folder: Path, family: str) -> None:
    raw = json.loads((model_folder / "config.json").read_text())
    raw |= {"model_type": family, "quantization_config": {"quant_method": "bitsandbytes"}}
    (model_folder / "config.json").write_text(json.dumps(raw))
    found = faults(path=str(model_folder))["model.path"]
    assert found.got == f"{str(model_folder)!r}, with a quantization_config"
    assert "quantised" in found.need


def test_an_id_that_may_be_a_misspelled_folder_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert faults(path="modles/mine") == {}
    assert caplog.messages == [
        "model.path: modles/mine is no folder here; it is downloaded from the hub before the run"
    ]
