"""vLLM as the rollout engine, in a process of its own that is told the weights, and prompts as tokens.

Its log-probabilities are those of the distribution that it drew from (`logprobs_mode: processed_logprobs`), and each
row has a seed, made from its random numbers. The process is ours and not vLLM's own engine process, which outlives a
parent that is killed; in it vLLM's patches of torch (threads, seeds, process groups) are no trouble to training.
Weights go there as a folder. Source: vLLM 0.32 (`LLM`, `SamplingParams`, the workers' `reload_weights`).
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dapo.config import Config
from dapo.device import rollout_dtype
from dapo.draws import Sampling
from dapo.engine_base import Rows, Sampled, check_finite
from dapo.engine_vllm_process import Settings, VllmProcess
from dapo.errors import ModelError
from dapo.killable import Failed, Task, Worker
from dapo.model import save_policy
from dapo.model_size import ModelSize

if TYPE_CHECKING:
    from dapo.model import Policy

BLOCK = 128
"""Tokens: at least the size of vLLM's blocks of keys and values, to which each row is rounded up."""
CALL_S = 24 * 3600.0
"""Seconds that a call may take: there is no telling how long generation does, only whether the process lives."""
OF_THE_MACHINE = {"Died": ConnectionError, "MemoryError": MemoryError, "OutOfMemoryError": MemoryError}
"""What is no fault of the config, by the kind of failure: worth another try."""
UNIFORM_BITS = 24
"""Random bits in a float32 in [0, 1)."""


class VllmEngine:
    """The process, started at the first call."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._worker: Worker | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="vllm-weights-")
        self._versions: tuple[tuple[int, int], ...] = ()

    def follow(self, policy: Policy) -> None:
        """Tell the process a policy's weights, if they have changed; all processes must ask.

        Raises:
            ModelError: vLLM can't load the model.
            MemoryError, ConnectionError: the machine's fault.
        """
        weights = list(policy.model.parameters())
        # How often each was written to in place; of parts that are gathered, this process doesn't know.
        versions = tuple((id(weight), weight._version) for weight in weights)
        if self._worker is not None and versions == self._versions and policy.world.size == 1:
            return
        save_policy(policy, self._folder.name)
        if self._worker is None:
            self._worker = Worker(Task(VllmProcess, (self._settings(weights[0]),)), CALL_S)
        self._call("load")
        self._versions = versions

    def sample(self, rows: Rows, sampling: Sampling, eos_id: int) -> list[Sampled]:
        """Sample N responses; see `engine_base.RolloutEngine.sample`."""
        found = self._call(
            "sample",
            prompts=[list(prompt) for prompt in rows.prompts],
            owners=rows.owners.tolist(),
            seeds=row_seeds(rows.uniforms),
            limits=rows.limits.tolist(),
            sampling=asdict(sampling),
            eos_id=eos_id,
        )
        check_finite(torch.tensor([value for _, logprobs in found for value in logprobs]))
        greedy = sampling.temperature == 0.0
        return [Sampled(ids, [0.0] * len(ids) if greedy else logprobs) for ids, logprobs in found]

    def serves(self, config: Config) -> bool:
        """Whether it is what this config asks for."""
        return (self.config.rollout, self.config.data) == (config.rollout, config.data)

    def close(self) -> None:
        """End the process; a later call starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        self._versions = ()

    def _call(self, method: str, **arguments: object) -> Any:
        assert self._worker is not None, "`follow` comes first"
        (result,) = self._worker.run([{"method": method, "arguments": arguments}])
        if isinstance(result, Failed):
            self.close()
            error = OF_THE_MACHINE.get(result.kind, ModelError)
            raise error(f"rollout.name: got vllm, which failed to {method} ({result.kind}: {result.reason})")
        return result

    def _settings(self, like: Tensor) -> Settings:
        rollout, data = self.config.rollout, self.config.data
        dtype = rollout_dtype(rollout, like)
        length = data.max_prompt_length + data.max_response_length
        size = ModelSize.of_folder(Path(self._folder.name))
        if size is None:
            raise ModelError("rollout.name: got vllm, and a config.json without the sizes of its KV cache; set builtin")
        # A block more than whole rows need: vLLM keeps one for itself.
        tokens = rollout.max_num_seqs * -(-length // BLOCK) * BLOCK + BLOCK
        return Settings(
            model=self._folder.name,
            dtype=str(dtype).removeprefix("torch."),
            max_num_seqs=rollout.max_num_seqs,
            max_num_batched_tokens=max(rollout.max_num_batched_tokens, rollout.max_num_seqs),
            max_model_len=length,
            kv_cache_memory_bytes=2 * size.layers * size.keys * dtype.itemsize * tokens,
            device=None if like.device.type == "cpu" else like.device.index or 0,
            threads=torch.get_num_threads(),
        )


def row_seeds(uniforms: Tensor) -> list[int]:
    """Make a seed of each row's first two random numbers [N, R]: as many bits as they have."""
    bits = (uniforms[:, :2].double() * 2**UNIFORM_BITS).long()
    return [int(first) << UNIFORM_BITS | int(last) for first, last in zip(bits[:, 0], bits[:, -1], strict=True)]
