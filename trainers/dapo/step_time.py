"""How long a step takes, told from its config before it costs anything: each kernel by its roofline. Loads no torch.

A matrix product takes as long as its FLOPs, or as long as its weights are read, whichever is longer (Williams et al.,
Communications of the ACM 52(4), 2009); what is computed number by number, as long as it is read and written. These
follow one another, so their times add up. What devices exchange is hidden behind computing only in the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from dapo.config import Config
from dapo.hardware import Machine
from dapo.memory import CANDIDATES, SCORED, bytes_of, evaluated_problems, rows_at_once
from dapo.mesh_sizes import MeshSizes
from dapo.model_size import ModelSize
from dapo.occupancy import lengths, moments

FORWARD, TRAINED, RECOMPUTED = 1, 3, 4
"""Passes' worth of FLOPs: a backward pass costs two forward ones, and with gradient checkpointing another."""
TOUCHED = 2
"""Times that what autograd would keep of a token is read or written in a forward pass."""
OPTIMIZER = 7
"""Numbers that AdamW reads and writes for each weight."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What only a run would tell."""

    prompt: float
    """Tokens of a prompt, in the mean."""
    response: float
    """Tokens of a response, in the mean."""
    kept: float = 1.0
    """Share of the groups that the filter keeps."""
    spread: float = 0.7
    """Standard deviation of the lengths of responses, over their mean."""


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step of a run, evaluation shared out among the steps."""

    parts: Mapping[str, float]
    """`generation`, `weights` (handed to the engine), `scoring`, `update`, `evaluation`, `other`."""
    tokens: float
    """Sampled for training."""
    occupancy: float
    """Mean share of the engine's places that are taken while it generates: the tail of long responses empties them."""

    @cached_property
    def total(self) -> float:
        """All parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class StepModel:
    """What the time of a step follows from."""

    config: Config
    size: ModelSize
    machine: Machine
    mesh: MeshSizes
    workload: Workload

    @cached_property
    def width(self) -> int:
        """Bytes of a number."""
        return bytes_of(self.config)

    @property
    def rounds(self) -> int:
        """Generation rounds until a batch is full."""
        missing = self.config.data.train_batch_size / max(self.workload.kept, 1e-3)
        return max(1, -(-round(missing) // self.config.gen_batch_size))

    def estimate(self) -> StepTime:
        """Seconds of a step, by what they are spent on."""
        config, rounds = self.config, self.rounds
        responses = config.gen_batch_size * config.rollout.n
        generated, occupancy = self.generation(config.gen_batch_size, config.rollout.n)
        evaluated = evaluated_problems(config) or 0
        tested = self.generation(evaluated, config.rollout.val_kwargs.n)[0] + self.handing() if evaluated else 0.0
        trained = config.data.train_batch_size * config.rollout.n
        parts = {
            "generation": rounds * generated,
            "weights": rounds * self.handing(),
            "scoring": self.scoring(trained, rounds * responses),
            "update": self.update(trained),
            "evaluation": tested * self._evaluations(),
            "other": rounds * responses * self.machine.reached.response_s,
        }
        return StepTime(parts, rounds * responses * self.workload.response, occupancy)

    def _evaluations(self) -> float:
        """Evaluations per step; that before the first one isn't counted."""
        trainer = self.config.trainer
        if trainer.test_freq > 0:
            return 1.0 / trainer.test_freq
        return 1.0 / (trainer.total_training_steps or 1)

    def generation(self, prompts: int, n: int) -> tuple[float, float]:
        """Seconds of sampling `n` responses to so many prompts, and the mean share of the places that are taken."""
        rows = max(1, -(-prompts * n // self.mesh.replicas))
        slots = min(rows, rows_at_once(self.config, self.mesh))
        limit = self.config.data.max_response_length
        found = lengths(rows, self.workload.response, limit, self.workload.spread, prompts * n)
        seconds = self._prefill(max(1, -(-prompts // self.mesh.replicas)))
        steps = busy = 0.0
        for moment in moments(found, slots):
            seconds += moment.steps * self._decode(moment.rows, self.workload.prompt + moment.generated)
            steps += moment.steps
            busy += moment.steps * moment.rows
        return seconds, busy / (steps * slots)

    def _prefill(self, prompts: int) -> float:
        """Each prompt goes through the model once, on the devices of its copy."""
        reached, tokens, tp = self.machine.reached, prompts * self.workload.prompt, self.mesh.tp
        flops = tokens * self.size.flops_per_token(self.workload.prompt / 2)
        compute = flops / tp / (self.machine.peak * reached.matmul)
        return compute + self._touched(tokens, FORWARD) + self._fixed(FORWARD) + self._summed(tokens)

    def _decode(self, rows: float, context: float) -> float:
        """One token for each of so many rows."""
        size, tp, reached = self.size, self.mesh.tp, self.machine.reached
        speed, bandwidth = self.machine.peak * reached.decode, self.machine.memory * reached.memory
        products = max(
            2.0 * size.weights_per_token * rows / tp / speed, size.weights_per_token * self.width / tp / bandwidth
        )
        cached = 2.0 * size.layers * size.keys / min(tp, size.kv_heads) * context * rows * self.width
        attention = max(4.0 * size.layers * size.queries * context * rows / tp / speed, cached / bandwidth)
        drawn = CANDIDATES * rows * size.vocab * 4 / bandwidth
        return products + attention + drawn + self._touched(rows, FORWARD) + self._fixed(FORWARD) + self._summed(rows)

    def _touched(self, tokens: float, passes: int) -> float:
        """What layers compute number by number: norms, rotations, activations, residuals."""
        numbers = TOUCHED * passes * self.size.layers * self.size.kept_per_token
        return tokens * numbers * self.width / (self.machine.memory * self.machine.reached.memory)

    def _fixed(self, passes: int) -> float:
        return passes * self.size.layers * self.machine.reached.layer_s

    def _summed(self, rows: float) -> float:
        """The sums of tensor parallelism: two a layer, each all-reduce sends everything nearly twice."""
        tp = self.mesh.tp
        if tp == 1:
            return 0.0
        sent = 2.0 * rows * self.size.hidden * self.width * 2 * (tp - 1) / tp
        return self.size.layers * (sent / self.machine.between(tp) + 2 * self.machine.reached.message_s)

    def handing(self) -> float:
        """The engine's weights are made of the trained ones: gathered layer by layer, cut, and written anew."""
        size, shards = self.size, self.mesh.shards
        written = (
            2.0 * size.parameters * self.width / self.mesh.tp / (self.machine.memory * self.machine.reached.memory)
        )
        if shards == 1:
            return written
        return written + self._gathered() + size.layers * self.machine.reached.message_s

    def _gathered(self) -> float:
        """All weights are gathered once, from the processes that have parts of them."""
        shards = self.mesh.shards
        return self.size.parameters * self.width * (shards - 1) / shards / self.machine.between(shards)

    def scoring(self, trained: int, generated: int) -> float:
        """Passes without gradient: old log-probabilities, and the reference's."""
        config = self.config
        one_step = config.mini_batch_size >= config.data.train_batch_size and config.actor.ppo_epochs == 1
        passes = (not one_step) + config.actor.use_kl_loss
        seconds = passes * self._pass(trained, FORWARD) if passes else 0.0
        return seconds + (2 * self._pass(generated, FORWARD) if config.algorithm.use_kl_in_reward else 0.0)

    def update(self, trained: int) -> float:
        """All optimiser steps over a batch of so many responses."""
        config, size, reached = self.config, self.size, self.machine.reached
        minis = -(-config.data.train_batch_size // config.mini_batch_size)
        passes = RECOMPUTED if config.model.enable_gradient_checkpointing else TRAINED
        moved = OPTIMIZER * size.parameters / self.mesh.shards * self.width
        step = self._pass(-(-trained // minis), passes) + moved / (self.machine.memory * reached.memory)
        copies = self.mesh.devices // self.mesh.shards
        if copies > 1:  # hybrid sharding: the sums of copies
            sent = 2.0 * size.parameters * self.width / self.mesh.shards * (copies - 1) / copies
            step += sent / self.machine.between(self.mesh.devices)
        return config.actor.ppo_epochs * minis * step

    def _pass(self, responses: int, passes: int) -> float:
        """Some passes over so many responses, shared out among the devices by their tokens."""
        mesh, size, reached = self.mesh, self.size, self.machine.reached
        each = self.workload.prompt + self.workload.response
        longest = (
            self.workload.prompt
            + lengths(
                responses, self.workload.response, self.config.data.max_response_length, self.workload.spread, responses
            )[-1]
        )
        part = max(responses * each / mesh.dp, longest)  # a sequence isn't cut but by Ulysses
        micro = max(1, -(-round(part) // self.config.actor.ppo_max_token_len_per_gpu))
        tokens = part / mesh.sp
        # The mean context of a token is half of its own sequence's length, and long sequences have more tokens.
        context = each * (1 + self.workload.spread**2) / 2
        compute = passes * tokens * size.flops_per_token(context) / (self.machine.peak * reached.matmul)
        compute += self._touched(tokens, passes) + micro * self._fixed(passes)
        scored = passes * SCORED * tokens * size.vocab * 4
        compute += scored / (self.machine.memory * reached.memory) + self._exchanged(tokens, passes)
        return self._beside(compute, micro * self._sharded(passes))

    def _exchanged(self, tokens: float, passes: int) -> float:
        """Ulysses' all-to-all: queries, keys and values to heads, and what attention makes of them back."""
        sp, size = self.mesh.sp, self.size
        if sp == 1:
            return 0.0
        sent = (
            tokens * 2 * (size.queries + max(size.keys, size.queries * sp // size.heads)) * self.width * (sp - 1) / sp
        )
        return passes * size.layers * (sent / self.machine.between(sp) + 4 * self.machine.reached.message_s)

    def _sharded(self, passes: int) -> float:
        """FSDP's exchanges of one micro-batch: weights for the forward and the backward pass, gradients after it."""
        if self.mesh.shards == 1:
            return 0.0
        times = 1 if passes == FORWARD else 3
        return times * (self._gathered() + self.size.layers * self.machine.reached.message_s)

    def _beside(self, compute: float, exchange: float) -> float:
        return compute + exchange - self.machine.reached.overlap * min(compute, exchange)
