"""The embedded model's recipe, with a few small steps: that it teaches, repeats and is cached."""

import shutil
from pathlib import Path

import pytest
import torch
from dapo import warmstart
from dapo.arithmetic import Step, problems
from dapo.model import Policy, load_policy, response_logprobs
from dapo.warmstart import initialise, tiny_path, train_tiny

STEPS = [name for name in vars(warmstart) if name.endswith("_STEPS")]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STEPS:
        monkeypatch.setattr(warmstart, name, 2)
    monkeypatch.setattr(warmstart, "BATCH", 8)


def mean_logprob(policy: Policy, texts: list[tuple[str, str]]) -> float:
    encode = policy.tokenizer.encode
    pairs = [(encode(policy.tokenizer.prompt(question)), encode(answer)) for question, answer in texts]
    with torch.no_grad():
        return float(response_logprobs(policy.model, pairs, 1.0)[0].mean())


def test_it_learns_to_write_solutions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STEPS:
        monkeypatch.setattr(warmstart, name, 8)
    policy = train_tiny()
    held_out = [(problem.problem, str(problem.extra["solution"])) for problem in problems("heldout", 20, 0)]
    learned = mean_logprob(policy, held_out)
    assert learned > mean_logprob(policy, [(question, text[::-1]) for question, text in held_out]) + 0.5
    initialise(policy.model, torch.Generator().manual_seed(warmstart.SEED))
    assert learned > mean_logprob(policy, held_out) + 1.0


def test_it_repeats_and_tells_how_far_it_is() -> None:
    calls: list[tuple[int, int]] = []
    first = train_tiny(lambda what, done, total: calls.append((done, total))).model.state_dict()
    second = train_tiny().model.state_dict()
    assert all(torch.equal(weight, second[name]) for name, weight in first.items())
    total = 2 * len(STEPS)
    assert calls == [(done, total) for done in range(1, total + 1)]


def test_it_is_trained_once_per_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    calls: list[int] = []

    def progress(what: str, done: int, total: int) -> None:
        calls.append(done)

    path = tiny_path(progress)
    steps = len(calls)
    assert path.parent == tmp_path / "cache"
    assert steps > 0
    assert tiny_path(progress) == path
    assert len(calls) == steps
    trained = train_tiny()
    loaded = load_policy(path).model.state_dict()
    assert all(torch.equal(weight, loaded[name]) for name, weight in trained.model.state_dict().items())


@pytest.mark.parametrize("module", ["arithmetic", "tokenizer", "model_decoder", "warmstart"])
def test_another_recipe_has_another_path(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same sources elsewhere share a folder; one that changed has its own."""
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    path = tiny_path()
    sources = shutil.copytree(Path(warmstart.__file__).parent, tmp_path / "sources")
    monkeypatch.setattr(warmstart, "__file__", str(sources / "warmstart.py"))
    assert tiny_path() == path
    with (sources / f"{module}.py").open("a") as file:
        file.write("# changed\n")
    assert tiny_path() != path


def test_another_torch_has_another_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLATFORM_CACHE", str(tmp_path / "cache"))
    path = tiny_path()
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert tiny_path() != path


@pytest.mark.parametrize(
    ("step", "result"),
    [
        (Step(47, "+", 5), 42),
        (Step(41, "+", 5), 46),
        (Step(195, "+", 17), 102),
        (Step(52, "-", 8), 54),
        (Step(58, "-", 2), 56),
        (Step(100, "-", 1), 109),
    ],
)
def test_forgotten_carries(step: Step, result: int) -> None:
    assert warmstart.without_carries(step) == result
