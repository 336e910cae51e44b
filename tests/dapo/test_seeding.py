import torch
from dapo.seeding import generator_for


def draws(seed: int, *purpose: object) -> list[float]:
    return torch.rand(4, generator=generator_for(seed, *purpose)).tolist()


def test_a_stream_depends_on_seed_and_purpose_only() -> None:
    first = draws(0, "rollout", 3)
    torch.rand(7)
    assert draws(0, "rollout", 3) == first


def test_streams_are_distinct() -> None:
    streams = [draws(seed, name, number) for seed in (0, 1) for name in ("rollout", "val") for number in (1, 2, 11)]
    assert len({tuple(stream) for stream in streams}) == len(streams)
