"""What preflight says of tools, before a token is generated."""

import json
from pathlib import Path
from typing import Any

import dapo.preflight_multi_turn
import pytest
from dapo.batch import Fault
from dapo.config import Config
from dapo.preflight import preflight

ON = {"enable": True}
ROOM = {"max_prompt_length": 1024, "max_response_length": 256}


def faults(multi_turn: dict[str, Any], **tree: Any) -> dict[str, Fault]:
    config = Config.model_validate({"data": ROOM, **tree, "rollout": {"multi_turn": multi_turn}})
    return {fault.key: fault for fault in preflight(config)}


@pytest.mark.parametrize(
    "settings",
    [
        ON,
        ON | {"max_turns": 2, "tool_usage_prob": 0.5, "max_parallel_calls": 3, "tool_response_truncate_side": "left"},
        ON | {"tools": ["python", "calculator"], "tool_timeout_s": 1.0, "tool_memory_mb": 64, "num_workers": 4},
    ],
)
def test_a_config_with_tools_is_clean(settings: dict[str, Any]) -> None:
    assert faults(settings) == {}


@pytest.mark.parametrize(
    ("settings", "name", "need"),
    [
        ({"max_turns": 3}, "max_turns", "its default with enable: false"),
        ({"tools": ["python"]}, "tools", "its default with enable: false"),
        ({"tool_usage_prob": 0.5}, "tool_usage_prob", "its default with enable: false"),
        (ON | {"max_turns": 1}, "max_turns", "at least 2"),
        (ON | {"tool_timeout_s": 1.0}, "tool_timeout_s", "its default with tools: [calculator]"),
        (ON | {"tool_memory_mb": 64}, "tool_memory_mb", "its default with tools: [calculator]"),
        (ON | {"num_workers": 2}, "num_workers", "its default with tools: [calculator]"),
        (ON | {"max_tool_response_length": 256}, "max_tool_response_length", "less than data.max_response_length"),
    ],
)
def test_one_fault(settings: dict[str, Any], name: str, need: str) -> None:
    found = faults(settings)
    assert list(found) == [f"rollout.multi_turn.{name}"]
    assert need in found[f"rollout.multi_turn.{name}"].need


def test_offers_count_as_prompt(tmp_path: Path) -> None:
    """The generated prompts fit their default limit, but not with the offer of tools before them."""
    need = faults(ON, data={"max_response_length": 256})["data.max_prompt_length"].need
    assert "for problem" in need and "of data.train" in need or "of data.val" in need
    (tmp_path / "a.jsonl").write_text(json.dumps({"problem": "1+1", "answer": 2}))
    data = {"train": str(tmp_path / "a.jsonl"), "max_response_length": 256, "filter_overlong_prompts": True}
    assert faults(ON, data=data) == {}


def test_a_machine_without_a_sandbox_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dapo.preflight_multi_turn, "sandbox_fault", lambda: "no process can be locked in (landlock)")
    found = faults(ON | {"tools": ["calculator", "python"]})
    assert list(found) == ["rollout.multi_turn.tools"]
    assert found["rollout.multi_turn.tools"].got == "python, and here no process can be locked in (landlock)"
    assert faults(ON) == {}, "the calculator needs none"


def with_template(folder: Path, template: str) -> dict[str, str]:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return {"path": str(folder)}


def test_a_chat_template_without_place_for_tools_is_told(model_folder: Path) -> None:
    model = with_template(model_folder, "{% for m in messages %}{{ m.content }}\n{% endfor %}")
    found = faults(ON, model=model)
    assert list(found) == ["model.path"]
    assert "closes no assistant's turn with <eos>" in found["model.path"].got
    assert faults({}, model=model) == {}
    model = with_template(model_folder, "{% for m in messages %}{{ m.content }}{{ eos_token }}\n{% endfor %}")
    (model_folder / "tokenizer.json").touch()
    assert faults(ON, model=model) == {}


def test_dialogues_that_can_not_be_rendered_are_told(model_folder: Path, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": talk, "answer": 1}))
    data = ROOM | {"train": str(tmp_path / "a.jsonl")}
    assert faults({}, data=data) == {}
    assert list(faults({}, data=data | {"prompt_template": "Q: {problem}"})) == ["data.prompt_template"]
    refusing = "{% if messages | length > 1 %}{{ raise_exception('too much') }}{% endif %}{{ messages[0].content }}"
    found = faults({}, data=data, model=with_template(model_folder, refusing))
    assert list(found) == ["model.path"]
    assert "too much" in found["model.path"].got
