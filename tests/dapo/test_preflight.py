import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dapo.preflight
import pytest
from dapo.batch import Fault
from dapo.config import Config
from dapo.preflight import preflight


def faults(devices: int = 1, **tree: Any) -> dict[str, Fault]:
    return {fault.key: fault for fault in preflight(Config.model_validate(tree), devices)}


def test_the_default_config_is_clean() -> None:
    assert preflight(Config(), 1) == []


def test_every_switch_of_the_loss_is_clean() -> None:
    actor = {
        "policy_loss": {"loss_mode": "gspo"},
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "loss_scale_factor": 100,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "kl_loss_type": "k3+",
    }
    algorithm = {
        "adv_estimator": "rloo",
        "use_kl_in_reward": True,
        "kl_penalty": "low_var_kl",
        "kl_ctrl": {"kl_coef": 0.1},
        "rollout_correction": {"rollout_is": "token", "rollout_is_threshold": 5.0},
    }
    assert faults(actor=actor, algorithm=algorithm) == {}


def test_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from dapo.trainer import Config, preflight; preflight(Config());"
        "print(*{'torch', 'numpy', 'pyarrow', 'transformers'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_custom_model_and_real_data_are_clean(model_folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"problem": f"{name}+1", "answer": "2"}))
    data = {"train": str(tmp_path / "a.jsonl"), "val": str(tmp_path / "b.jsonl")}
    assert faults(model={"path": str(model_folder)}, data=data) == {}


@pytest.mark.parametrize(
    ("tree", "key", "got", "need"),
    [
        pytest.param(
            {"actor": {"ppo_max_token_len_per_gpu": 16}},
            "actor.ppo_max_token_len_per_gpu",
            "16",
            "at least 112 tokens",
            id="budget below one sequence",
        ),
        pytest.param(
            {"actor": {"ppo_mini_batch_size": 512}},
            "actor.ppo_mini_batch_size",
            "512 prompts",
            "a divisor of data.train_batch_size, which is 32",
            id="mini-batch in responses",
        ),
        pytest.param(
            {"actor": {"ppo_mini_batch_size": 12}},
            "actor.ppo_mini_batch_size",
            "12",
            "divisor",
            id="indivisible",
        ),
        pytest.param({"rollout": {"n": 1}}, "rollout.n", "1", "at least 2", id="a group of one"),
        pytest.param(
            {"rollout": {"n": 1}, "algorithm": {"filter_groups": {"enable": False}}},
            "rollout.n",
            "1",
            "at least 2",
            id="a group of one without filter",
        ),
        pytest.param(
            {"reward": {"overlong_buffer": {"enable": True, "len": 48}}},
            "reward.overlong_buffer.len",
            "48",
            "less than data.max_response_length, which is 48",
            id="buffer as long as the response",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"metric": "f1"}}},
            "algorithm.filter_groups.metric",
            "'f1'",
            "one of acc, score, seq_reward, seq_final_reward",
            id="unknown metric",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"statistic": "mean", "threshold": 0.5, "upper": 0.5}}},
            "algorithm.filter_groups.threshold",
            "0.5",
            "less than algorithm.filter_groups.upper",
            id="empty range",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"threshold": 0.5}}},
            "algorithm.filter_groups.threshold",
            "0.5",
            "its default with statistic: spread",
            id="a bound that nobody reads",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"statistic": "mean", "tolerance": 0.5}}},
            "algorithm.filter_groups.tolerance",
            "0.5",
            "its default with statistic: mean",
            id="a tolerance that nobody reads",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"surplus": "carry"}}, "rollout": {"top_p": 0.9}},
            "algorithm.filter_groups.surplus",
            "top_p 0.9",
            "rollout.top_p: 1",
            id="no log-probs to carry",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"statistic": "mean", "threshold": 0.1, "adaptive": {"enable": True}}}},
            "algorithm.filter_groups.adaptive.floor",
            "0.1",
            "less than algorithm.filter_groups.threshold, which is 0.1",
            id="nothing to lower",
        ),
        pytest.param(
            {
                "algorithm": {
                    "filter_groups": {
                        "statistic": "mean",
                        "threshold": 0.3,
                        "max_num_gen_batches": 0,
                        "adaptive": {"enable": True},
                    }
                }
            },
            "algorithm.filter_groups.adaptive.enable",
            "max_num_gen_batches 0",
            "a fraction of which",
            id="a fraction of no cap",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"surplus_max_staleness": 3}}},
            "algorithm.filter_groups.surplus_max_staleness",
            "3",
            "its default with surplus: drop",
            id="a limit that nobody reads",
        ),
        pytest.param(
            {"algorithm": {"filter_groups": {"adaptive": {"factor": 0.5}}}},
            "algorithm.filter_groups.adaptive.factor",
            "0.5",
            "its default with enable: false",
            id="a factor that nobody reads",
        ),
        pytest.param(
            {"data": {"selection": {"target": 0.3}}},
            "data.selection.target",
            "0.3",
            "its default with strategy: shuffle",
            id="a target that nobody reads",
        ),
        pytest.param({"rollout": {"pilot_n": 8}}, "rollout.pilot_n", "8", "less than rollout.n", id="all are pilots"),
        pytest.param({"rollout": {"pilot_n": 1}}, "rollout.pilot_n", "1", "from 2", id="a pilot of one"),
        pytest.param(
            {"rollout": {"pilot_n": 4}, "algorithm": {"filter_groups": {"enable": False}}},
            "rollout.pilot_n",
            "4",
            "algorithm.filter_groups.enable: true",
            id="a pilot that nothing judges",
        ),
        pytest.param(
            {"reward": {"correct_reward": -1.0}},
            "reward.correct_reward",
            "-1.0",
            "more than",
            id="right pays no more",
        ),
        pytest.param(
            {"actor": {"loss_scale_factor": 100}},
            "actor.loss_scale_factor",
            "100",
            "its default with loss_agg_mode: token-mean",
            id="a length that nobody divides by",
        ),
        pytest.param(
            {"actor": {"policy_loss": {"loss_mode": "gspo"}, "clip_ratio_c": 3.0}},
            "actor.clip_ratio_c",
            "3.0",
            "its default with policy_loss.loss_mode: gspo",
            id="a dual clip that nobody reads",
        ),
        pytest.param(
            {"actor": {"ppo_micro_batch_size_per_gpu": 4}},
            "actor.ppo_micro_batch_size_per_gpu",
            "4",
            "its default with use_dynamic_bsz: true",
            id="a number of responses that nobody reads",
        ),
        pytest.param(
            {"actor": {"dynamic_bsz_warmup_steps": 31}},
            "actor.dynamic_bsz_warmup_steps",
            "31",
            "at most the 30 updates of the run",
            id="a batch that is never whole",
        ),
        pytest.param(
            {"actor": {"use_dynamic_bsz": False}},
            "actor.ppo_micro_batch_size_per_gpu",
            "None",
            "a number of responses",
            id="micro-batches of no size",
        ),
        pytest.param(
            {"actor": {"kl_loss_coef": 0.1}},
            "actor.kl_loss_coef",
            "0.1",
            "its default with use_kl_loss: false",
            id="a weight of no KL",
        ),
        pytest.param(
            {"algorithm": {"kl_ctrl": {"kl_coef": 0.1}}},
            "algorithm.kl_ctrl.kl_coef",
            "0.1",
            "its default with algorithm.use_kl_in_reward: false",
            id="a weight of no KL in the reward",
        ),
        pytest.param(
            {"algorithm": {"adv_estimator": "rloo", "norm_adv_by_std_in_grpo": False}},
            "algorithm.norm_adv_by_std_in_grpo",
            "False",
            "its default with adv_estimator: rloo",
            id="a deviation that nobody divides by",
        ),
        pytest.param(
            {"algorithm": {"rollout_correction": {"rollout_is_threshold": 5.0}}},
            "algorithm.rollout_correction.rollout_is_threshold",
            "5.0",
            "its default with rollout_is: null",
            id="a threshold of no correction",
        ),
        pytest.param({"data": {"train": "no.jsonl"}}, "data.train", "no.jsonl", "a file", id="missing file"),
        pytest.param(
            {"data": {"train": "arithmetic-heldout"}},
            "data.train",
            "'arithmetic-heldout'",
            "a set to train on",
            id="training on the held-out split",
        ),
        pytest.param({"data": {"val": "aime"}}, "data.val", "aime", "arithmetic-aime", id="unknown set"),
        pytest.param({"model": {"path": "nosuch"}}, "model.path", "'nosuch'", "Hugging Face folder", id="no model"),
        pytest.param({"trainer": {"device": "gpu"}}, "trainer.device", "'gpu'", "cuda", id="no device"),
        pytest.param(
            {"trainer": {"default_local_dir": __file__}},
            "trainer.default_local_dir",
            "test_preflight",
            "a folder",
            id="a file as folder",
        ),
        pytest.param(
            {"reward": {"grader": "custom", "custom_reward_function": "nosuch:f"}},
            "reward.custom_reward_function",
            "nosuch",
            "importable",
            id="no such function",
        ),
        pytest.param(
            {"rollout": {"tensor_model_parallel_size": 2}},
            "rollout.tensor_model_parallel_size",
            "2",
            "at most the 1 device",
            id="TP on one device",
        ),
        pytest.param(
            {"actor": {"ulysses_sequence_parallel_size": 4}},
            "actor.ulysses_sequence_parallel_size",
            "4",
            "at most the 1 device",
            id="SP on one device",
        ),
    ],
)
def test_one_fault(tree: dict[str, Any], key: str, got: str, need: str) -> None:
    found = faults(**tree)
    assert list(found) == [key]
    assert got in found[key].got
    assert need in found[key].need
    assert found[key].do


def test_prompts_are_measured_with_the_models_tokenizer(model_folder: Path, tmp_path: Path) -> None:
    rows = [
        {"id": "short", "problem": "1+1", "answer": "2"},
        {"id": "long", "problem": "1+" * 50 + "1", "answer": "51"},
    ]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    tree = {"model": {"path": str(model_folder)}, "data": {"train": str(tmp_path / "a.jsonl")}}
    assert (
        faults(**tree)["data.max_prompt_length"].need == "102 tokens for problem long of data.train (1 of 2 are longer)"
    )
    tree["data"]["filter_overlong_prompts"] = True
    assert faults(**tree) == {}


def test_a_model_with_quantised_weights_is_told(model_folder: Path) -> None:
    path = model_folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": {"bits": 4}}))
    assert "quantization_config" in faults(model={"path": str(model_folder)})["model.path"].got
    (model_folder / "model.safetensors").unlink()
    assert "without model.safetensors" in faults(model={"path": str(model_folder)})["model.path"].got


def test_each_fault_of_a_file_is_told_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{\n\n{}\n")
    config = Config.model_validate({"data": {"train": str(tmp_path / "a.jsonl")}})
    first, second = preflight(config)
    assert first.key == second.key == "data.train"
    assert "a.jsonl:1: no JSON" in first.got
    assert "a.jsonl:3: problem: None" in second.got
    assert "\n" not in f"{first}{second}"


def test_prompts_are_measured_for_the_embedded_model_before_it_exists(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"problem": "' + "long " * 20 + '", "answer": 1}\n')
    data = {"train": str(tmp_path / "a.jsonl"), "max_prompt_length": 64}
    assert "101 tokens" in faults(data=data)["data.max_prompt_length"].need
    assert not faults(data=data | {"max_prompt_length": 101})


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    found = faults(
        data={"train": str(tmp_path / "no.jsonl"), "train_batch_size": 10},
        actor={"ppo_mini_batch_size": 3, "ppo_max_token_len_per_gpu": 10},
        rollout={"n": 1, "tensor_model_parallel_size": 2},
        algorithm={"filter_groups": {"metric": "nosuch"}},
    )
    assert set(found) == {
        "data.train",
        "actor.ppo_mini_batch_size",
        "actor.ppo_max_token_len_per_gpu",
        "rollout.n",
        "rollout.tensor_model_parallel_size",
        "algorithm.filter_groups.metric",
    }


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"problem": "1+1", "answer": 2}\n')
    reads = []
    load = dapo.preflight.load_dataset
    monkeypatch.setattr("dapo.preflight.load_dataset", lambda *args: reads.append(args) or load(*args))
    for _ in range(3):
        assert faults(data={"train": str(path)}) == {}
    assert len(reads) == 1
    path.write_text("{}\n")
    assert "data.train" in faults(data={"train": str(path)})
