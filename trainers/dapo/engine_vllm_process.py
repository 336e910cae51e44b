"""What runs in the process of `dapo.engine_vllm`: vLLM's `LLM`, told weights as a folder and prompts as tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MESH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of torchrun's: they are the trainer's, and vLLM's process stands alone."""
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its own engine process outlives a parent that is killed
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # threads are shared out by the trainer
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Of vLLM's `LLM`; names are its own, where it has them."""

    model: str
    """Folder that weights come in."""
    dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """Tokens of prompt and response."""
    kv_cache_memory_bytes: int
    device: int | None
    """Number of the accelerator among those that the trainer sees; None on a CPU."""
    threads: int


class VllmProcess:
    """Answers the calls of `VllmEngine`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.llm: Any = None

    def __call__(self, method: str, arguments: Mapping[str, Any]) -> Any:
        """Load the weights that lie in the folder now, or sample."""
        return self.sample(**arguments) if method == "sample" else self.load()

    def load(self) -> None:
        """Read the folder: the model too, the first time."""
        if self.llm is None:
            self.llm = self._start()
            return
        self.llm.collective_rpc("reload_weights", kwargs={"weights_path": self.settings.model})
        self.llm.reset_prefix_cache()  # of the old weights

    def sample(
        self,
        *,
        prompts: Sequence[Sequence[int]],
        owners: Sequence[int],
        seeds: Sequence[int],
        limits: Sequence[int],
        sampling: Mapping[str, Any],
        eos_id: int,
    ) -> list[tuple[list[int], list[float]]]:
        """Return each row's tokens and their log-probabilities.

        A prompt is read once: its other rows find its keys and values in the cache, where it is longer than a block.
        """
        from vllm import SamplingParams

        drawn = {**sampling, "top_k": max(sampling["top_k"], 0), "logprobs": 0, "detokenize": False}
        drawn |= {"stop_token_ids": [eos_id], "ignore_eos": True}
        asked = [{"prompt_token_ids": list(prompts[owner])} for owner in owners]
        params = [
            SamplingParams(seed=seed, max_tokens=limit, **drawn) for seed, limit in zip(seeds, limits, strict=True)
        ]
        found = [output.outputs[0] for output in self.llm.generate(asked, params, use_tqdm=False)]
        return [
            (
                list(row.token_ids),
                [at[token].logprob for token, at in zip(row.token_ids, row.logprobs, strict=True)],
            )
            for row in found
        ]

    def _start(self) -> Any:
        settings = self.settings
        for name in MESH:
            os.environ.pop(name, None)
        os.environ.update(ENVIRONMENT)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ["OMP_NUM_THREADS"] = str(settings.threads)
        if settings.device is not None:
            seen = os.environ.get("CUDA_VISIBLE_DEVICES")
            device = seen.split(",")[settings.device] if seen else str(settings.device)
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        from vllm import LLM

        return LLM(
            model=settings.model,
            dtype=settings.dtype,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
            gpu_memory_utilization=0.01,  # the cache's size is given; what else is free is the trainer's
            skip_tokenizer_init=True,
            generation_config="vllm",  # none of the folder's
            logprobs_mode="processed_logprobs",
            enable_prefix_caching=True,
            enforce_eager=settings.device is None,
            seed=0,
            use_tqdm_on_load=False,
        )
