"""Parts of the update that torch compiles, where `actor.use_torch_compile` asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

import torch

F = TypeVar("F", bound=Callable[..., object])


@cache
def compiled(function: F) -> F:
    """Return `function` compiled for tensors of any length; it is compiled when it is first called."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # otherwise a pool of processes stays with this one
    return cast(F, torch.compile(function, dynamic=True))
