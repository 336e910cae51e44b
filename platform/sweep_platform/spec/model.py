"""What a sweep is: the frozen, checked form of a spec."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from sweep_platform.errors import BadInput
from sweep_platform.spec.domains import Domain
from sweep_platform.spec.faults import from_pydantic, spec_key
from sweep_platform.spec.identity import changes, identity_of
from sweep_platform.spec.paths import put

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)

NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$"
"""What a sweep or a run may be called: a folder has its name."""


def _seconds(value: Any) -> Any:
    """Turn 90, "90", "90s", "10m" or "1h30m" into seconds."""
    if not isinstance(value, str):
        return value
    match = _DURATION.fullmatch(value.replace(" ", ""))
    if match is None or not any(match.groups()):
        raise ValueError("need seconds or a duration such as 10m, 1h30m, 90s; write one")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


Seconds = Annotated[float, BeforeValidator(_seconds), Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, strict=True)]
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Part(BaseModel):
    """A part of a spec: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


class Objective(Part):
    """One thing to optimise."""

    metric: str
    """A metric that trials report; `sweep_platform.spec.metrics` lists them."""
    direction: Literal["maximize", "minimize"]
    """Which way is better."""


class Prior(Part):
    """A known-good candidate, tried before the sampler is asked."""

    name: str
    """File name in `priors/`, `base` (the base config), or `inline-<n>`."""
    params: dict[str, Any]
    """Searched path -> value. The sampler fills in paths that are missing."""
    ignored: dict[str, Any] = {}
    """What the prior says about paths that this sweep doesn't search."""


STARTUP = 6
"""Candidates that models need before they say more than chance."""


class SamplerSpec(Part):
    """Who suggests candidates."""

    name: Literal["ehvi", "tpe", "gp", "nsga2", "random", "qmc", "grid"] = "tpe"
    """ehvi, tpe and gp model what was seen, nsga2 evolves it; random, qmc and grid (finite spaces) don't look. ehvi is
    our own (`sweep_platform.search.ehvi`): it knows the noise of each result and what a candidate will cost."""
    n_startup: Count = STARTUP
    """ehvi, tpe, gp: candidates drawn without a model before it is used; priors count. ehvi needs 3 by default: each
    costs a trial, and its models know what they don't know."""
    population: Annotated[int, Field(ge=2, strict=True)] = 8
    """nsga2: candidates in one generation."""

    @model_validator(mode="before")
    @classmethod
    def _few_for_ehvi(cls, values: Any) -> Any:
        ehvi = isinstance(values, dict) and values.get("name") == "ehvi"
        return {"n_startup": 3, **values} if ehvi else values


class Budget(Part):
    """When a sweep ends: whichever limit comes first. Trials refused before they ran don't count."""

    trials: Count = 12
    """Trials to run."""
    concurrency: Count = 1
    """Trials at once; each gets cores // concurrency threads."""
    flops: Amount | None = None
    """Model FLOPs over all trials, evaluation not counted."""
    tokens: Amount | None = None
    """Tokens generated for training over all trials, thrown-away ones included."""
    device_seconds: Amount | None = None
    """Wall seconds x devices over all trials, evaluation not counted."""
    wall_clock: Seconds | None = None
    """Seconds (or 10m, 1h30m) in which trials run, over all runs of the command, after which none starts."""
    min_gain: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Stop when the most promising candidate is expected to add less than this share to the hypervolume of the front;
    see `sweep_platform.search.ehvi`. 0.01 is one percent."""

    @staticmethod
    def known(stored: Mapping[str, Any]) -> dict[str, Any]:
        """What a stored budget limits that this version can limit: it may be of an earlier one, which had others."""
        return {key: value for key, value in stored.items() if key in Budget.model_fields}

    @property
    def amounts(self) -> dict[str, float]:
        """The currencies that are limited, and by how much."""
        limits = {"flops": self.flops, "tokens": self.tokens, "device_seconds": self.device_seconds}
        return {currency: limit for currency, limit in limits.items() if limit is not None}


class Pruning(Part):
    """Early stopping: asynchronous successive halving over several objectives; see `sweep_platform.pruning`."""

    rungs: Annotated[tuple[Annotated[float, Field(gt=0, lt=1)], ...], Field(min_length=1)] = (0.25, 0.5)
    """Shares of a trial's own length at which it is evaluated and compared with the others."""
    reduction: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 2.0
    """One in so many goes on from a rung."""
    optimism: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Standard errors by which a trial is judged better than measured, before it is stopped."""

    @field_validator("rungs")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("need shares that ascend, each once; sort them")
        return value


class Hardware(Part):
    """What trials run on."""

    name: str = "cpu"
    """A label."""
    devices: Count = 1
    """Devices of one trial: bounds tensor and sequence parallel sizes."""
    cores: Count | None = None
    """CPU cores shared by the trials that run at once; null takes those of the machine."""
    memory_gb: Annotated[float, Field(gt=0)] | None = None
    """GiB of one device: a bound on a trial's `perf/peak_memory_gb`, and before it is trained on the trainer's estimate
    of it. null is no limit."""
    kind: Literal["cpu", "cuda", "npu"] | None = None
    """What its devices are, for `platform estimate`, as the rest below is; null asks `config.trainer.device`."""
    devices_per_node: Count | None = None
    """Devices of one machine; null has all in one."""
    peak_tflops: dict[str, Amount] = {}
    """By type of number (`float32`, `bfloat16`): TFLOP/s of one device's matrix products, without sparsity, as the data
    sheet has them. Of a CPU that isn't told it is measured."""
    memory_gb_per_s: Amount | None = None
    """GB/s between one device and its memory; of a CPU that isn't told it is measured."""
    link_gb_per_s: Amount | None = None
    """GB/s that one device sends to others of its machine, in one direction."""
    network_gb_per_s: Amount | None = None
    """GB/s that one device sends to other machines."""


class Confirmation(Part):
    """How `platform confirm` runs the front again."""

    config: dict[str, Any] = {}
    """Dotted path in the trainer's config -> value of the confirming runs, such as held-out problems."""
    runs: Annotated[int, Field(ge=2, strict=True)] = 2
    """Runs of each point, under new seeds, before points are compared."""
    max_runs: Annotated[int, Field(ge=2, strict=True)] = 6
    """Runs of a point at most, while noise hides which of two is better."""
    apart: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """Combined standard errors by which neighbours on the front must differ to count as told apart."""

    @model_validator(mode="after")
    def _most_is_no_less(self) -> Self:
        if self.max_runs < self.runs:
            raise ValueError(f"need max_runs of at least runs, which is {self.runs}; raise it")
        return self


def _named_sampler(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class SweepSpec(Part):
    """A sweep, complete.

    `model`, `data` and `config` hold every field of the trainer's config, defaults too, so that a stored spec
    means the same under another version of the trainer.
    """

    name: Annotated[str, Field(pattern=NAME)]
    """Names the sweep on the command line."""
    trainer: str = "dapo"
    """A trainer's entry-point name."""
    model: dict[str, Any] = {}
    """The policy (group)."""
    data: dict[str, Any] = {}
    """Prompts, batch sizes and length limits (group)."""
    hardware: Hardware = Hardware()
    """The machine (group)."""
    config: dict[str, Any] = {}
    """The other sections of the trainer's config."""
    objectives: Annotated[tuple[Objective, ...], Field(min_length=1)]
    """What to optimise; usually an accuracy and a cost."""
    constraints: tuple[str, ...] = ()
    """Expressions over the config, refused before they cost anything, or bounds on metrics, checked after."""
    search: Annotated[dict[str, Domain], Field(min_length=1)]
    """Dotted path in the trainer's config -> domain."""
    priors: tuple[Prior, ...] = ()
    """Candidates to try first, in order."""
    sampler: Annotated[SamplerSpec, BeforeValidator(_named_sampler)] = SamplerSpec()
    """Who suggests candidates."""
    budget: Budget = Budget()
    """When the sweep ends."""
    pruning: Pruning | None = None
    """How trials are stopped early; null lets each run to its end."""
    confirm: Confirmation = Confirmation()
    """How the front is run again before one of its points is trusted."""
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    """Seeds the sampler and, unless `config.trainer.seed` says otherwise, the trials."""

    @field_validator("objectives")
    @classmethod
    def _distinct(cls, value: tuple[Objective, ...]) -> tuple[Objective, ...]:
        if len({objective.metric for objective in value}) < len(value):
            raise ValueError("need each metric once; take the double out")
        return value

    @property
    def cost_metric(self) -> str | None:
        """The first objective that is a cost, if there is one."""
        return next((o.metric for o in self.objectives if o.metric.startswith("cost/")), None)

    @property
    def threads(self) -> int:
        """CPU threads of one trial."""
        return max(1, (self.hardware.cores or available_cores()) // self.budget.concurrency)

    @property
    def base(self) -> dict[str, Any]:
        """The trainer's config before any parameter is set, nested."""
        return copy.deepcopy({"model": self.model, "data": self.data, **self.config})

    @property
    def notes(self) -> list[str]:
        """What a user should know about the spec although nothing is wrong with it."""
        told = [
            f"priors.{prior.name}: {path} is not searched; its value {value!r} is not used"
            for prior in self.priors
            for path, value in prior.ignored.items()
        ]
        cores = self.hardware.cores or available_cores()
        if self.budget.concurrency > cores:
            at_once = f"budget.concurrency: {self.budget.concurrency} trials at once"
            told.append(f"{at_once} share {cores} core{'s' if cores > 1 else ''} here, and will wait for one another")
        return told

    def trial_config(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The trainer's config of one trial, nested and plain: the base with `params` set.

        Threads are those of this machine unless the spec pins them.
        """
        config = self.base
        section = config.get("trainer")
        if isinstance(section, dict) and section.get("num_threads", 0) is None:
            section["num_threads"] = self.threads
        for path, value in params.items():
            put(config, path, value)
        return config

    def identity(self) -> str:
        """Hash of everything that makes trials comparable; see `sweep_platform.spec.identity`."""
        return identity_of(self.to_dict())

    def diff(self, stored: Mapping[str, Any]) -> list[str]:
        """What differs from `stored` (an earlier `to_dict()`) and matters, as lines `key: was X, is Y`."""
        return changes(stored, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The spec as JSON-compatible values; `from_dict` restores it without any file."""
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> SweepSpec:
        """Restore a spec from `to_dict()`; limits of a budget that there are no more are left out.

        Raises:
            BadInput: another version of the platform stored it, and this one can't read it.
        """
        try:
            return cls.model_validate({**stored, "budget": Budget.known(stored.get("budget", {}))})
        except ValidationError as error:
            place = f"sweep {stored.get('name', '')}, as it is stored"
            raise BadInput(from_pydantic(error, cls, lambda key: f"{place}: {key}", spec_key)) from error


def available_cores() -> int:
    """CPU cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1))
