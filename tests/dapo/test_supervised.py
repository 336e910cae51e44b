"""Supervised warm starts: what is taught, that it is learnt, and what is left alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from dapo.config import Config
from dapo.config_warmstart import WarmstartConfig
from dapo.data import load_dataset
from dapo.errors import DapoError, DataError, NonFinite
from dapo.model import load_policy
from dapo.reward import Scorer
from dapo.supervised import choose_examples, tokenized, warmstart
from dapo.trainer import train
from pydantic import ValidationError
from safetensors.torch import load_file

ANSWER = "Answer: {answer}"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Sums with and without a solution; the last two are validation problems too."""
    train_rows: list[dict[str, Any]] = [{"problem": f"{n}+1", "answer": n + 1} for n in range(10)]
    train_rows[0]["solution"] = "0+1 = 1\nAnswer: 1"
    train_rows[1]["solution"] = "1+1 = 2"  # the grader finds no answer in it
    train_rows[2] |= {"solution": "  ", "worked": "two and one are 3"}
    val_rows = [*train_rows[8:], {"problem": "20+1", "answer": 21}]
    for name, content in (("train", train_rows), ("val", val_rows)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in content))
    return tmp_path


@pytest.fixture
def config(rows: Path, model_folder: Path) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model_folder)},
            "data": {"train": str(rows / "train.jsonl"), "val": str(rows / "val.jsonl"), "max_response_length": 24},
            "rollout": {"val_kwargs": {"n": 2}},
            "trainer": {"num_threads": 1, "device": "cpu"},
        }
    )


def examples(config: Config, **settings: Any) -> dict[str, str]:
    """What is taught, by problem."""
    scorer = Scorer(config.reward, config.data.max_response_length)
    val = load_dataset(config.data.val, config.reward.grader)
    chosen, left_out = choose_examples(config, WarmstartConfig(**settings), scorer, val)
    assert left_out == 2
    return {example.problem.problem: example.target for example in chosen}


def test_targets_are_solutions_or_the_stated_answer_and_end_in_what_the_grader_reads(config: Config) -> None:
    found = examples(config)
    assert found["0+1"] == "0+1 = 1\nAnswer: 1"
    assert found["1+1"] == "1+1 = 2\nAnswer: 2"
    assert found["2+1"] == "Answer: 3"
    assert found["7+1"] == "Answer: 8"


def test_field_and_template_are_configurable(config: Config) -> None:
    found = examples(config, field="worked", template="#### {answer}")
    assert found["0+1"] == "#### 1"
    assert found["2+1"] == "two and one are 3\n#### 3"
    with pytest.raises(DataError, match=r"warmstart\.field: got 'sloution'; need a column of .* with solutions"):
        examples(config, field="sloution")


def test_validation_problems_are_never_taught_however_they_are_spaced(config: Config, rows: Path) -> None:
    content = (rows / "val.jsonl").read_text()
    (rows / "val.jsonl").write_text(content.replace('"8+1"', '"  8+1 "'))
    assert set(examples(config)) == {f"{n}+1" for n in range(8)}


def test_validation_problems_that_val_size_leaves_unmeasured_are_not_taught_either(
    config: Config, rows: Path, tmp_path: Path
) -> None:
    tree = config.model_dump(mode="json")
    tree["data"]["val_size"] = 1
    result = warmstart(Config.model_validate(tree), WarmstartConfig(steps=1), tmp_path / "warm")
    assert (result.before["val/problems"], result.left_out, result.examples) == (1.0, 2, 8)


def test_problems_of_two_sources_with_one_id_each_have_their_own_target(config: Config, rows: Path) -> None:
    both = [
        {"id": "0", "data_source": source, "problem": f"{number}+1", "answer": number + 1}
        for number, source in enumerate(("one", "two"))
    ]
    (rows / "train.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in both))
    policy = load_policy(config.model.path)
    val = load_dataset(config.data.val, config.reward.grader)
    scorer = Scorer(config.reward, config.data.max_response_length)
    chosen, _ = choose_examples(config, WarmstartConfig(), scorer, val)
    pairs = tokenized(chosen, policy, config)
    assert {tuple(map(policy.tokenizer.decode, pair)) for pair in pairs} == {
        ("0+1\n", "Answer: 1"),
        ("1+1\n", "Answer: 2"),
    }


def test_a_share_is_drawn_at_random_and_repeatably(config: Config) -> None:
    found = examples(config, share=0.5)
    assert len(found) == 4
    assert found == examples(config, share=0.5)
    assert set(found) != {f"{n}+1" for n in range(4)}
    assert set(found) != set(
        examples(config.model_copy(update={"trainer": config.trainer.model_copy(update={"seed": 1})}), share=0.5)
    )


def test_a_template_that_the_grader_cannot_read_is_refused(config: Config, rows: Path) -> None:
    train = rows / "train.jsonl"
    train.write_text(train.read_text().replace("solution", "remark"))
    with pytest.raises(DataError, match=r"warmstart\.template: got 'it is \{answer\}'; need a template"):
        examples(config, template="it is {answer}")


def test_a_template_without_the_answer_is_refused() -> None:
    with pytest.raises(ValidationError, match="{answer} in template"):
        WarmstartConfig(template="Answer: 5")


def test_it_learns_and_its_folder_is_a_model(config: Config, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    settings = WarmstartConfig(epochs=40, batch_size=4, lr=1e-2)
    result = warmstart(config, settings, tmp_path / "warm", lambda *progress: told.append(progress))
    assert (result.steps, result.examples, result.solutions, result.left_out) == (80, 8, 2, 2)
    assert result.losses[-1] < 0.2 * result.losses[0]
    assert result.before["val/accuracy"] == 0.0
    assert result.after["val/problems"] == 3.0
    assert {what for what, _, _ in told} == {
        "evaluation before the warm start",
        "warm start",
        "evaluation after the warm start",
    }
    assert ("warm start", 80, 80) in told
    policy = load_policy(tmp_path / "warm")
    assert policy.tokenizer.decode(policy.tokenizer.encode("Answer: 3")) == "Answer: 3"
    tree = config.model_dump(mode="json")
    tree["model"]["path"] = str(tmp_path / "warm")
    tree["trainer"] |= {"total_training_steps": 1, "save_freq": 0}
    tree["algorithm"]["filter_groups"] |= {"enable": False}
    tree["data"] |= {"train_batch_size": 4}
    steps = []
    train(Config.model_validate(tree), lambda step: steps.append(step) is None)
    for name in ("val/accuracy", "val/response_length"):  # the same noise, so the same numbers
        assert steps[0].metrics[name] == result.after[name]


def test_the_gradient_does_not_depend_on_micro_batches(config: Config, tmp_path: Path) -> None:
    weights = []
    for budget in (4096, 1):
        settings = WarmstartConfig(steps=2, batch_size=8, lr=1e-3, max_token_len=budget)
        warmstart(config, settings, tmp_path / f"warm-{budget}")
        state = load_file(tmp_path / f"warm-{budget}" / "model.safetensors")
        weights.append(torch.cat([tensor.flatten() for tensor in state.values()]))
    assert float((weights[0] - weights[1]).abs().max()) < 2e-4
    start = load_file(Path(config.model.path) / "model.safetensors")
    assert float((weights[0] - torch.cat([tensor.flatten() for tensor in start.values()])).abs().max()) > 5e-4


def test_the_model_it_starts_from_stays_as_it_is(config: Config, tmp_path: Path) -> None:
    before = (Path(config.model.path) / "model.safetensors").read_bytes()
    warmstart(config, WarmstartConfig(steps=1), tmp_path / "warm")
    assert (Path(config.model.path) / "model.safetensors").read_bytes() == before


def test_an_existing_folder_is_refused(config: Config, tmp_path: Path) -> None:
    (tmp_path / "warm").mkdir()
    with pytest.raises(DataError, match="out: got .*warm, which exists"):
        warmstart(config, WarmstartConfig(steps=1), tmp_path / "warm")


def test_solutions_that_do_not_fit_are_left_out_and_none_that_fits_is_told(config: Config, tmp_path: Path) -> None:
    tree = config.model_dump(mode="json")
    tree["data"]["max_response_length"] = 1
    with pytest.raises(DataError, match=r"data\.max_response_length: got 1; need at least \d+ tokens"):
        warmstart(Config.model_validate(tree), WarmstartConfig(steps=1), tmp_path / "warm")


def test_a_loss_that_is_not_finite_leaves_nothing(config: Config, tmp_path: Path) -> None:
    folder = Path(config.model.path)
    policy = load_policy(folder)
    with torch.no_grad():
        policy.model.model.norm.weight.mul_(1e38)
    from dapo.model import save_policy

    save_policy(policy, folder)
    with pytest.raises(DapoError) as caught:
        warmstart(config, WarmstartConfig(steps=3), tmp_path / "warm")
    assert isinstance(caught.value, NonFinite)
    assert not list(tmp_path.glob("*warm*"))


KILLED = """
import os, sys
from pathlib import Path
import dapo.model, dapo.supervised
from dapo.config import Config
from dapo.config_warmstart import WarmstartConfig
whole = dapo.supervised.save_policy
def die(policy, folder):
    whole(policy, folder)
    (folder / "model.safetensors").write_bytes(b"half of it")
    os._exit(9)
dapo.supervised.save_policy = die
config = Config.model_validate_json(sys.argv[1])
dapo.supervised.warmstart(config, WarmstartConfig(steps=1), Path(sys.argv[2]))
"""


def test_a_kill_while_saving_leaves_no_folder_and_the_next_call_writes_it(config: Config, tmp_path: Path) -> None:
    target = tmp_path / "warm"
    done = subprocess.run([sys.executable, "-c", KILLED, config.model_dump_json(), str(target)], check=False)
    assert done.returncode == 9
    assert not target.exists()
    warmstart(config, WarmstartConfig(steps=1), target)
    load_policy(target)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".warm")]
