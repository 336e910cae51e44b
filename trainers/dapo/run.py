"""One run's parts and state: set up afresh or from a checkpoint, recorded step by step."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from dapo.accounting import Meter, cost_metrics, generation_flops, memory_metrics, reset_peak_memory
from dapo.batch import EvaluatedSample, Response, RolloutGroup, StepMetrics
from dapo.checkpoint import Checkpoints, Found, RunState
from dapo.config import Config
from dapo.data import Prompts, announce, load_dataset, tokenize
from dapo.device import choose_device
from dapo.draws import Sampling
from dapo.errors import CheckpointError
from dapo.evaluate import describe, evaluate, evaluation_metrics
from dapo.filter_rule import KNOWN_METRICS, check_metric
from dapo.lora import add_adapter, load_adapter
from dapo.model import Policy, Spread, flops_per_token, load_policy
from dapo.model_folder import resolve_model
from dapo.multi_turn import converse
from dapo.overlap import held_apart
from dapo.parallel import World
from dapo.reward import Scorer
from dapo.sampling import tokens_of
from dapo.seeding import generator_for, seed_for
from dapo.sharding import shard
from dapo.throughput import busy_clock, measured_peak, of_all_devices
from dapo.tools import Toolbox
from dapo.update import make_optimizer

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Run:
    """A training run in progress."""

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    scorer: Scorer
    train_prompts: Prompts
    val_prompts: Prompts
    val_repeats: int
    checkpoints: Checkpoints | None
    state: RunState
    reference: Policy | None = None
    """The policy that the run started from, frozen; None where nothing is measured from it."""
    toolbox: Toolbox | None = None
    """The tools that are offered; None: every response has one turn."""
    meter: Meter = field(default_factory=Meter)
    saved_step: int = -1
    """Step of the last checkpoint that this process wrote or read."""

    @property
    def total_steps(self) -> int:
        """Updates planned."""
        return self.config.planned_updates(len(self.train_prompts))

    @classmethod
    def start(cls, config: Config) -> Run:
        """Load data and policy, from the latest checkpoint if the run may resume.

        Raises:
            DataError: a data set can't be used.
            ModelError: the model can't be loaded.
            CheckpointError: the checkpoints there are belong to another config, or are damaged.
        """
        if config.trainer.num_threads is not None:
            torch.set_num_threads(config.trainer.num_threads)
        chosen = choose_device(config.trainer.device)
        world, device = World.of(config, chosen), chosen.torch
        reset_peak_memory(device)
        checkpoints = _checkpoints(config, world)
        found = checkpoints.latest(config) if checkpoints is not None else None
        policy = load_trained_policy(config, device, found, world)
        policy.model.gradient_checkpointing = config.model.enable_gradient_checkpointing
        policy.model.remove_padding = config.model.use_remove_padding
        policy.model.compiled = config.actor.use_torch_compile
        train_set = load_dataset(config.data.train, config.reward.grader)
        val_set = load_dataset(config.data.val, config.reward.grader, config.data.val_size)
        announce(config.data.train, train_set, config.reward.grader)
        announce(config.data.val, val_set, config.reward.grader)
        train_prompts = tokenize(held_apart(train_set, val_set, config), policy.tokenizer, config, "data.train")
        run = cls(
            config=config,
            policy=policy,
            optimizer=make_optimizer(policy, config.actor.optim),
            scorer=Scorer(config.reward, config.data.max_response_length),
            train_prompts=train_prompts,
            val_prompts=tokenize(val_set, policy.tokenizer, config, "data.val"),
            val_repeats=val_set.repeats,
            checkpoints=checkpoints,
            reference=load_reference(config, device, world),
            toolbox=Toolbox.of(config),
            state=found.state if found is not None else RunState(prompts_digest=train_prompts.digest),
        )
        run._try_reward()
        if found is not None:
            found.load_optimizer(run.optimizer)
            run._continue_from(str(found.path))
        run.meter.devices = world.size
        peak = measured_peak(device, policy.model.head_weight.dtype, torch.get_num_threads())
        run.meter.peak = world.size * peak
        run.meter.start(busy_clock(device))
        run.meter.cost = run.state.cost
        if checkpoints is not None:
            run.meter.cost = checkpoints.with_lost_seconds(run.state.cost)
        return run

    def _try_reward(self) -> None:
        """See by an empty response, before the first token, that a custom function returns what the filter reads.

        Raises:
            DapoError: it doesn't. A function that fails on an empty response says nothing.
        """
        rule, problem = self.config.algorithm.filter_groups, self.train_prompts.problems[0]
        if self.config.reward.grader == "custom" and rule.enable and rule.metric not in KNOWN_METRICS:
            empty = Response([], [], True, "")
            scores = self.scorer.score_all([(problem, empty)])
            check_metric([RolloutGroup(problem, [], [empty], scores)], rule.metric)

    def generate(self, indices: Sequence[int], n: int, *purpose: object) -> list[RolloutGroup]:
        """Sample `n` responses to each prompt, given by its position in the training set, and pay for them.

        The random numbers depend on the seed and `purpose` only.
        """
        rollout, prompts = self.config.rollout, self.train_prompts
        offered = [self._offers_tools(index) for index in indices]
        asked = [prompts.prompt(index, tools=tools) for index, tools in zip(indices, offered, strict=True)]
        with self.meter.time("gen"):
            responses = converse(
                self.policy,
                asked,
                offered,
                n,
                sampling=Sampling(rollout.temperature, rollout.top_p, rollout.top_k),
                config=self.config,
                toolbox=self.toolbox,
                generator=generator_for(self.config.trainer.seed, *purpose),
            )
        self._note_tools()
        groups = []
        for index, tokens, answers in zip(indices, asked, responses, strict=True):
            groups.append(RolloutGroup(prompts.problems[index], tokens, answers))
            flops = generation_flops(len(tokens), answers, partial(flops_per_token, self.policy.config))
            self.meter.spend("gen", flops, tokens_of(groups[-1]))
        return groups

    def _offers_tools(self, index: int) -> bool:
        """Whether this round offers tools with a prompt: the same for its pilot and the rest, and after a resume."""
        if self.toolbox is None:
            return False
        number = seed_for(self.config.trainer.seed, "tools", self.state.rounds, index)
        return number < self.config.rollout.multi_turn.tool_usage_prob * 2**63

    def _note_tools(self) -> None:
        if self.toolbox is not None:
            self.meter.note_part("tools", self.toolbox.take_seconds())

    def record(self, metrics: dict[str, float]) -> StepMetrics:
        """Close a step: evaluate if it is due, note the result, and save if that is due.

        The result is in the checkpoint before it is told to anyone, so that a run that dies in between can
        tell it again.
        """
        trainer, step = self.config.trainer, self.state.step
        final = step == self.total_steps
        samples: tuple[EvaluatedSample, ...] = ()
        if self.config.trainer.tests_at(step, self.total_steps):
            failures = self.scorer.failures
            with self.meter.time("testing"):
                samples = evaluate(
                    self.policy,
                    self.val_prompts,
                    self.scorer,
                    self.config,
                    self.meter,
                    repeats=self.val_repeats,
                    toolbox=self.toolbox,
                )
            self._note_tools()
            failures = self.scorer.failures - failures
            if self.policy.world.leads:
                metrics = metrics | evaluation_metrics(samples, self.config.rollout.val_kwargs)
                metrics |= {"val/grader_failures": float(failures)}
                metrics |= self.scorer.take_agreement("val")
                logger.info("step %d: %s", step, describe(metrics))
        self.state.cost = self.meter.cost
        self.state.last = StepMetrics(
            step=step,
            total_steps=self.total_steps,
            metrics=metrics | self._measured() | cost_metrics(self.meter.cost) | self.state.token_metrics(),
            cost=self.meter.cost,
            evaluation=samples,
            final=final,
        )
        if final or (step > 0 and trainer.save_freq > 0 and step % trainer.save_freq == 0):
            self.save()
        if self.checkpoints is not None and self.policy.world.leads:
            self.checkpoints.note_progress(step, self.meter.cost)
        return self.state.last

    def _measured(self) -> dict[str, float]:
        """Times, speeds and memory of the step, over all devices."""
        found = self.meter.take_step() | memory_metrics(self.policy.model.head_weight.device)
        own = {name: value for name, value in found.items() if name.startswith("perf/idle") or "memory" in name}
        everyone = self.policy.world.gather(json.dumps(own).encode())
        return found | of_all_devices([json.loads(said) for said in everyone])

    def save(self) -> None:
        """Write a checkpoint, if the run keeps any."""
        if self.checkpoints is not None:
            self.state.cost = self.meter.cost
            self.checkpoints.save(self.state, self.policy, self.optimizer, self.config)
            self.saved_step = self.state.step

    def _continue_from(self, source: str) -> None:
        """Fit what a checkpoint says to this run's length, which may have changed.

        Raises:
            CheckpointError: it is past the end, or the training problems have changed.
        """
        state = self.state
        if state.prompts_digest not in ("", self.train_prompts.digest):
            raise CheckpointError(
                f"data.train: got other problems than {source} was trained on; need the same ones; put the file back, "
                "or the data.val that shared problems with it, or set another trainer.default_local_dir"
            )
        if state.step > self.total_steps:
            name = "total_training_steps" if self.config.trainer.total_epochs is None else "total_epochs"
            raise CheckpointError(
                f"trainer.{name}: got {self.total_steps} updates; need at least {state.step}, where "
                f"{source} stands; raise it, or set another trainer.default_local_dir"
            )
        if state.last is not None:
            final = state.last.final and state.step == self.total_steps
            state.last = replace(state.last, total_steps=self.total_steps, final=final)
        self.saved_step = state.step
        logger.info("resumed from %s at step %d of %d", source, state.step, self.total_steps)


def load_initial_policy(config: Config, device: torch.device, spread: Spread | None = None) -> Policy:
    """Load the policy that a run starts from."""
    folder = resolve_model(config.model.path, config.model.revision)
    return load_policy(folder, dtype=config.model.dtype, device=device, spread=spread)


def load_trained_policy(config: Config, device: torch.device, found: Found | None, world: World) -> Policy:
    """Load the policy that a run goes on with, from a checkpoint if there is one, with its adapter if it trains one.

    Each process reads and holds its part of the weights; only with an adapter it has all of them for a moment.
    """
    spread = _spread(config, world)
    if not config.model.lora_rank:
        return (
            load_initial_policy(config, device, spread) if found is None else found.load_policy(config, device, spread)
        )
    policy = load_initial_policy(config, device)
    add_adapter(policy, config.model, config.trainer.seed)
    if found is not None:
        load_adapter(policy.model, found.path)
    spread(policy)
    return policy


def load_reference(config: Config, device: torch.device, world: World) -> Policy | None:
    """Load the policy that a run starts from once more, to stay as it is; None where the config never reads it."""
    if not config.needs_reference:
        return None
    reference = load_initial_policy(config, _place(config, device, world), _spread(config, world))
    reference.model.requires_grad_(False)
    reference.model.remove_padding = config.model.use_remove_padding
    return reference


def _place(config: Config, device: torch.device, world: World) -> torch.device:
    """Where a process's part of the weights lies."""
    return torch.device("cpu") if world.size > 1 and config.actor.fsdp_config.offload_policy else device


def _spread(config: Config, world: World) -> Spread:
    """Puts a policy into a world."""

    def spread(policy: Policy) -> None:
        policy.world = world
        shard(policy, config.actor.fsdp_config)

    return spread


def _checkpoints(config: Config, world: World) -> Checkpoints | None:
    """The run's checkpoints; those of an earlier run are set aside if it mustn't resume."""
    trainer = config.trainer
    if trainer.default_local_dir is None:
        return None
    checkpoints = Checkpoints(trainer.default_local_dir, trainer.max_ckpt_to_keep)
    checkpoints.check_shared(world)
    if trainer.resume_mode == "disable" and world.leads:
        checkpoints.set_aside()
    world.wait()
    return checkpoints
