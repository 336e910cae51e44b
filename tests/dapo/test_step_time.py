"""The model of a step's time: what it is made of, what it grows with, and what bounds it."""

from typing import Any

import pytest
from dapo.config import Config
from dapo.errors import DataError
from dapo.estimate import SP, TP, estimate_layouts
from dapo.hardware import ON_ACCELERATOR, ON_CPU, Machine
from dapo.mesh_sizes import MeshSizes
from dapo.model_size import ModelSize, size_of
from dapo.named_models import PUBLIC_SHAPES
from dapo.step_time import StepModel, StepTime, Workload

A100 = {
    "kind": "cuda",
    "devices": 8,
    "devices_per_node": 8,
    "memory_gb": 79.0,
    "peak_tflops": {"bfloat16": 312.0},
    "memory_gb_per_s": 2039.0,
    "link_gb_per_s": 300.0,
    "network_gb_per_s": 25.0,
}
TREE: dict[str, Any] = {
    "model": {"path": "Qwen/Qwen2.5-7B", "dtype": "bfloat16"},
    "data": {"train_batch_size": 128, "max_prompt_length": 1024, "max_response_length": 4096, "val_size": 30},
    "actor": {"ppo_max_token_len_per_gpu": 8192},
    "algorithm": {"filter_groups": {"enable": False}},
}
WORKLOAD = Workload(prompt=200, response=1000)


def config(**changes: Any) -> Config:
    tree = {section: dict(values) for section, values in TREE.items()}
    for key, value in changes.items():
        section, name = key.split("__")
        tree.setdefault(section, {})[name] = value
    return Config.model_validate(tree)


def model(workload: Workload = WORKLOAD, devices: int = 8, **changes: Any) -> StepModel:
    wanted = config(**changes)
    size = size_of(wanted)
    assert size is not None
    hardware = {**A100, "devices": devices}
    return StepModel(wanted, size, Machine.of(wanted, hardware), MeshSizes.of(wanted, devices), workload)


def step(workload: Workload = WORKLOAD, devices: int = 8, **changes: Any) -> StepTime:
    return model(workload, devices, **changes).estimate()


def test_no_update_is_faster_than_its_flops() -> None:
    size = ModelSize.of_decoder(PUBLIC_SHAPES["Qwen/Qwen2.5-7B"])
    tokens = 128 * 8 * 1200
    least = 6 * size.weights_per_token * tokens / (8 * 312e12)
    seconds = step().parts["update"]
    assert 2 * least < seconds < 4 * least
    assert step(model__enable_gradient_checkpointing=True).parts["update"] == pytest.approx(seconds * 4 / 3, rel=0.1)


def test_no_decoding_is_faster_than_its_weights_are_read() -> None:
    size = ModelSize.of_decoder(PUBLIC_SHAPES["Qwen/Qwen2.5-7B"])
    one = step(Workload(prompt=10, response=100, spread=0.01), data__train_batch_size=8, rollout__n=1)
    read = 100 * 2 * size.weights_per_token / 2039e9
    assert 1.4 * read < one.parts["generation"] < 3 * read


def test_it_grows_with_what_it_is_made_of() -> None:
    base = step()
    twice = step(data__train_batch_size=256)
    assert twice.parts["update"] == pytest.approx(2 * base.parts["update"], rel=0.05)
    assert base.parts["generation"] < twice.parts["generation"] < 2 * base.parts["generation"]
    room: dict[str, Any] = {"data__max_response_length": 30_000, "actor__ppo_max_token_len_per_gpu": 32_000}
    longer, short = step(Workload(prompt=200, response=2000), **room), step(**room)
    assert longer.parts["generation"] > 2 * short.parts["generation"], "the cache is read by each token"
    skewed = step(Workload(prompt=200, response=1000, spread=1.5), **room)
    assert skewed.parts["generation"] > 1.3 * short.parts["generation"], "the longest are waited for"
    assert skewed.occupancy < 0.7 * short.occupancy
    assert step(devices=16).parts["update"] < 0.8 * base.parts["update"]
    assert base.total == pytest.approx(sum(base.parts.values()))
    assert base.tokens == 128 * 8 * 1000


def test_passes_without_gradient_are_scoring() -> None:
    assert step().parts["scoring"] == 0.0, "one optimiser step per update needs no old log-probabilities"
    minis = step(actor__ppo_mini_batch_size=32)
    update = step().parts["update"]
    assert update / 5 < minis.parts["scoring"] < update / 2
    both = step(actor__ppo_mini_batch_size=32, actor__use_kl_loss=True)
    assert both.parts["scoring"] == pytest.approx(2 * minis.parts["scoring"])
    assert step(algorithm__use_kl_in_reward=True).parts["scoring"] == pytest.approx(2 * minis.parts["scoring"], rel=0.2)


def test_filtered_groups_cost_rounds() -> None:
    half = Workload(prompt=200, response=1000, kept=0.5)
    assert model(half).rounds == 2 and model().rounds == 1
    assert model(half, data__gen_batch_size=384).rounds == 1
    filtered = step(half)
    assert filtered.parts["generation"] == pytest.approx(2 * step().parts["generation"])
    assert filtered.parts["weights"] == pytest.approx(2 * step().parts["weights"])
    assert filtered.parts["update"] == step().parts["update"]


def test_evaluation_is_shared_out() -> None:
    often, seldom = step(trainer__test_freq=5), step(trainer__test_freq=10)
    assert often.parts["evaluation"] == pytest.approx(2 * seldom.parts["evaluation"])
    last = step(trainer__test_freq=0, trainer__total_training_steps=100)
    assert last.parts["evaluation"] == pytest.approx(seldom.parts["evaluation"] / 10)


def test_devices_pay_for_what_they_exchange() -> None:
    near, far = model(), model(devices=16)
    assert far.machine.between(16) == pytest.approx(ON_ACCELERATOR.link * 25e9)
    assert near.machine.between(8) == pytest.approx(ON_ACCELERATOR.link * 300e9)
    assert far.handing() > 2 * near.handing()
    assert step(actor__ulysses_sequence_parallel_size=4).parts["update"] > step().parts["update"]
    copies = step(devices=16, actor__fsdp_config={"fsdp_size": 8}).parts["update"]
    assert copies != step(devices=16).parts["update"]


def test_one_long_sequence_needs_sequence_parallelism_to_be_shared() -> None:
    few: dict[str, Any] = {"data__train_batch_size": 8, "rollout__n": 1}
    skewed = Workload(prompt=200, response=1000, spread=1.5)
    shared = step(skewed, actor__ulysses_sequence_parallel_size=4, **few)
    assert shared.parts["update"] < step(skewed, **few).parts["update"]


def test_layouts_are_sorted_and_what_fits_comes_first() -> None:
    found, workload = estimate_layouts(config(), A100, {}, {"response": 1000.0})
    assert workload == Workload(prompt=512.0, response=1000.0)
    assert {layout.choice[TP] for layout in found} == {1, 2, 4}, "28 heads can't go to 8"
    assert [layout.order for layout in found] == sorted(layout.order for layout in found)
    needs = sorted(layout.memory.total_gb for layout in found if layout.memory is not None)
    limit = (needs[0] + needs[-1]) / 2
    tight, _ = estimate_layouts(config(), {**A100, "memory_gb": limit}, {}, {"response": 1000.0})
    assert {layout.fits for layout in tight} == {True, False}
    assert [layout.fits for layout in tight] == sorted((layout.fits for layout in tight), reverse=True)
    for layout in tight:
        assert layout.memory is not None
        assert layout.fits == (layout.memory.total_gb <= limit)


def test_the_rows_that_fit_do() -> None:
    wide = config(rollout__max_num_seqs=1024, rollout__n=64, model__enable_gradient_checkpointing=True)
    (layout, *_), _ = estimate_layouts(wide, {**A100, "memory_gb": 60.0}, {TP: [1], SP: [1]}, {})
    assert not layout.fits and 0 < layout.rows < 1024
    fitting = wide.model_copy(update={"rollout": wide.rollout.model_copy(update={"max_num_seqs": layout.rows})})
    more = wide.model_copy(update={"rollout": wide.rollout.model_copy(update={"max_num_seqs": layout.rows + 2})})
    for one, fits in ((fitting, True), (more, False)):
        (again, *_), _ = estimate_layouts(one, {**A100, "memory_gb": 60.0}, {TP: [1], SP: [1]}, {})
        assert again.fits is fits


def test_searched_sizes_that_are_impossible_say_why() -> None:
    found, _ = estimate_layouts(config(), A100, {TP: [1, 3], SP: [1, 8]}, {})
    assert len(found) == 4
    refused = [layout for layout in found if layout.refused]
    assert len(refused) == 3 and found[-3:] == refused and found[0].time is not None
    reasons = {reason for layout in refused for reason in layout.refused}
    assert f"{TP}: got 3; need a divisor of the 8 devices at hand" in reasons
    heads = f"{SP}: got 8; need a divisor of the model's 28 attention heads"
    assert any(reason.startswith(heads) for reason in reasons)


def test_figures_that_are_missing_are_named_all_at_once() -> None:
    with pytest.raises(DataError) as raised:
        Machine.of(config(), {"kind": "cuda", "devices": 16, "devices_per_node": 8})
    assert [fault.key for fault in raised.value.faults] == [
        "hardware.peak_tflops.bfloat16",
        "hardware.memory_gb_per_s",
        "hardware.link_gb_per_s",
        "hardware.network_gb_per_s",
    ]
    alone = {"kind": "cuda", "devices": 1, "peak_tflops": {"bfloat16": 1.0}, "memory_gb_per_s": 1.0}
    assert Machine.of(config(), alone).devices == 1, "nothing to exchange"


def test_a_processor_is_measured_here() -> None:
    machine = Machine.of(Config(), {"devices": 2})
    assert machine.reached == ON_CPU
    assert 1e9 < machine.peak < 1e14 and 1e8 < machine.memory < 1e13 and machine.link > 0
    told = Machine.of(Config(), {"peak_tflops": {"float32": 0.5}, "memory_gb_per_s": 20.0, "link_gb_per_s": 3.0})
    assert (told.peak, told.memory) == (0.5e12, 20e9)


def test_a_model_without_a_shape_is_refused() -> None:
    with pytest.raises(DataError, match="model.path: got 'owner/unknown'; need a model whose shape is known"):
        estimate_layouts(config(model__path="owner/unknown"), A100, {}, {})
