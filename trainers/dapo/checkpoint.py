"""Checkpoints: atomic, checked, rotating, without pickle.

A checkpoint is a folder `global_step_<N>`: `model/` (a Hugging Face folder, usable as `model.path`),
`optimizer.safetensors`, with LoRA `adapter.safetensors`, `state.json` and `manifest.json` with a checksum for each
file. It is written under another name, synced and renamed, so it is whole or not there. A damaged one is passed over
for the one before it.

Beside them, `progress.json` is rewritten after each step: what a run had spent when it was killed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dapo.accounting import TokenAccount
from dapo.batch import Cost, EvaluatedSample, Problem, Response, RolloutGroup, Score, StepMetrics, Turns
from dapo.config import Config
from dapo.durable import flush, sha256_of
from dapo.errors import CheckpointError
from dapo.lora import save_adapter
from dapo.model import Policy, Spread, load_policy, save_policy
from dapo.model_decoder import adapter_state
from dapo.parallel import World
from dapo.resuming import free_to_change
from dapo.sampling import SampledBatch, tokens_of
from dapo.selection import Evidence, History
from dapo.sharding import part_like, rows_here, whole_tensor

FORMAT = 1
MANIFEST, STATE, OPTIMIZER, MODEL, PROGRESS = (
    "manifest.json",
    "state.json",
    "optimizer.safetensors",
    "model",
    "progress.json",
)
_NAME = re.compile(r"global_step_(?P<step>\d+)(?:\.(?P<serial>\d+))?")
_TEMPORARY = ".unfinished-"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RunState:
    """Everything besides the weights and the optimiser that says where a run is.

    There is no random state: every draw has a generator made from the seed and these counters
    (`dapo.seeding`).
    """

    step: int = 0
    """Updates done."""
    prompts_drawn: int = 0
    """Prompts taken from the training set so far: the position in its order, epochs included."""
    rounds: int = 0
    """Generation rounds so far."""
    skipped_updates: int = 0
    """Updates that had nothing to train on."""
    cost: Cost = field(default_factory=Cost)
    last: StepMetrics | None = None
    """The last step's report, told again on a resume."""
    carried: list[RolloutGroup] = field(default_factory=list)
    """Surplus groups that wait for the next update, oldest first."""
    lowered: int = 0
    """Times that an adaptive filter's bound has been lowered."""
    account: TokenAccount = field(default_factory=TokenAccount)
    """Where the generated tokens went."""
    prompts_chosen: int = 0
    """Prompts that were asked about because of their history, beside those `prompts_drawn` in order."""
    history: History = field(default_factory=History)
    """What is known of each prompt."""
    prompts_digest: str = ""
    """Of the training prompts (`dapo.data.Prompts.digest`), to which the counters and the history refer."""

    def close_update(self, sampled: SampledBatch, trained_tokens: int) -> None:
        """Note that an update was made (or skipped) with a batch; what was held for the next one is older now."""
        self.account.add(sampled, trained_tokens)
        self.carried, self.lowered = sampled.held, sampled.lowered
        for group in self.carried:
            group.behind += 1
        self.step += 1

    def give_up(self, sampled: SampledBatch, carry: bool) -> None:
        """Note that sampling ran dry before an update: its good groups wait for a resume, or are surplus."""
        if carry:
            sampled.held = sampled.groups + sampled.held
        else:
            sampled.tokens_surplus += sampled.tokens_kept
        sampled.groups, sampled.tokens_kept = [], 0
        self.account.add(sampled, 0)
        self.carried, self.lowered = sampled.held, sampled.lowered

    def token_metrics(self) -> dict[str, float]:
        """Where all tokens went, by metric name."""
        return self.account.metrics(sum(map(tokens_of, self.carried)), self.cost.evaluation_tokens)


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint that was read and checked."""

    path: Path
    state: RunState
    config: Config
    """What it was trained with."""

    def load_policy(self, config: Config, device: str | torch.device, spread: Spread | None = None) -> Policy:
        """Load its weights, as `dapo.model.load_policy` does."""
        return load_policy(self.path / MODEL, dtype=config.model.dtype, device=device, spread=spread)

    def load_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Restore the optimiser's state in place."""
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, torch.Tensor]] = {}
        with safe_open(self.path / OPTIMIZER, "pt") as file:
            for name in file.keys():
                index, _, key = name.partition(".")
                weight, moment = weights[int(index)], file.get_slice(name)
                rows = moment[rows_here(weight)] if moment.get_shape() else file.get_tensor(name)
                state.setdefault(int(index), {})[key] = part_like(rows, weight)
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class _Tensors(NamedTuple):
    """What a checkpoint has in tensors, whole."""

    weights: dict[str, torch.Tensor]
    adapter: dict[str, torch.Tensor]
    moments: dict[str, torch.Tensor]


class Checkpoints:
    """The checkpoints of one run, in one folder."""

    def __init__(self, folder: str | Path, keep: int) -> None:
        """Use `folder`, keeping the `keep` latest checkpoints."""
        self.folder = Path(folder)
        self.keep = keep

    def save(self, state: RunState, policy: Policy, optimizer: torch.optim.Optimizer, config: Config) -> Path:
        """Write a checkpoint and delete those beyond the `keep` latest; return its folder.

        Of several processes all must call it; the leading one writes, whole tensors, so that any mesh can read them.

        Raises:
            CheckpointError: the folder can't be written.
        """
        tensors = _Tensors(policy.model.saved_state(), adapter_state(policy.model), _optimizer_tensors(optimizer))
        folder = self._write(state, policy, config, tensors) if policy.world.leads else None
        return Path(policy.world.told_by_leader(str(folder)))

    def _write(self, state: RunState, policy: Policy, config: Config, tensors: _Tensors) -> Path:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._sweep_unfinished()
            work = self.folder / f"{_TEMPORARY}{os.getpid()}"
            work.mkdir()
            save_policy(policy, work / MODEL, tensors.weights)
            save_adapter(tensors.adapter, work)
            save_file(tensors.moments, work / OPTIMIZER)
            content = {"format": FORMAT, "state": _content_of(state), "config": config.model_dump(mode="json")}
            (work / STATE).write_text(json.dumps(content), "utf-8")
            files = [path for path in sorted(work.rglob("*")) if path.is_file()]
            manifest = {str(path.relative_to(work)): sha256_of(path) for path in files}
            (work / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
            for path in (*files, work / MANIFEST, work / MODEL, work):
                flush(path)
            target = self._free_name(state.step)
            work.rename(target)
            flush(self.folder)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"trainer.default_local_dir: {self.folder} can't be written ({error})") from error
        for _, old in self._paths()[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)
        return target

    def latest(self, config: Config) -> Found | None:
        """Return the newest checkpoint that is whole, or None if there is none at all.

        Raises:
            CheckpointError: it is of another config (every key that differs is named), or all are damaged.
        """
        paths = self._paths()
        for _, path in reversed(paths):
            try:
                found = _read(path)
            except CheckpointError as error:
                logger.warning("%s; the checkpoint before it is tried", error)
                continue
            _check_config(found, config)
            return found
        if paths:
            raise CheckpointError(
                f"{self.folder}: got {len(paths)} damaged checkpoints; need a whole one; "
                "restore one, or move the folder away to start afresh"
            )
        return None

    def check_shared(self, world: World) -> None:
        """See that all processes find the same folder, wherever they run. All must ask.

        Raises:
            CheckpointError: some don't see what the leading one writes there.
        """
        if world.size == 1:
            return
        probe = self.folder / world.told_by_leader(f".probe-{secrets.token_hex(8)}")
        with suppress(OSError):  # of one that can't be written, saving tells
            if world.leads:
                self.folder.mkdir(parents=True, exist_ok=True)
                probe.touch()
        world.wait()
        seen = world.gather(bytes([probe.exists()]))
        if world.leads:
            probe.unlink(missing_ok=True)
        blind = [str(rank) for rank, found in enumerate(seen) if found != seen[0]]
        if blind:
            raise CheckpointError(
                f"trainer.default_local_dir: got {self.folder}, another folder for process {', '.join(blind)} than for "
                f"process 0; need one that all {world.size} processes share, on every node; name one"
            )

    def newest_model(self) -> Path | None:
        """Return the model's folder in the newest checkpoint that has one; nothing else of it is read."""
        models = [path / MODEL for _, path in self._paths()]
        return next((model for model in reversed(models) if (model / "config.json").exists()), None)

    def set_aside(self) -> None:
        """Move what an earlier run left into a subfolder, so that a new run doesn't mix with it."""
        left = [path for _, path in self._paths()]
        if not left:
            return
        number = 1 + sum(1 for _ in self.folder.glob("superseded-*"))
        target = self.folder / f"superseded-{number}"
        target.mkdir()
        for path in left:
            path.rename(target / path.name)
        logger.warning("%s: %d checkpoints of an earlier run are now in %s", self.folder, len(left), target.name)

    def note_progress(self, step: int, cost: Cost) -> None:
        """Record what has been spent, so that a kill doesn't hide it; not being able to is no harm."""
        temporary = self.folder / f"{_TEMPORARY}{PROGRESS}"
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps({"step": step, "cost": asdict(cost)}), "utf-8")
            temporary.replace(self.folder / PROGRESS)

    def with_lost_seconds(self, cost: Cost) -> Cost:
        """Add the seconds that went into steps after the checkpoint, which a killed run will do again.

        They are known up to the last step that was finished. FLOPs and tokens are left: each step counts
        once.
        """
        try:
            noted = Cost(**json.loads((self.folder / PROGRESS).read_text("utf-8"))["cost"])
        except (OSError, ValueError, TypeError, KeyError):
            return cost
        return replace(
            cost,
            device_seconds=max(cost.device_seconds, noted.device_seconds),
            evaluation_device_seconds=max(cost.evaluation_device_seconds, noted.evaluation_device_seconds),
        )

    def _paths(self) -> list[tuple[tuple[int, int], Path]]:
        """All checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        matches = [(_NAME.fullmatch(path.name), path) for path in self.folder.iterdir()]
        return sorted(((int(m["step"]), int(m["serial"] or 0)), path) for m, path in matches if m)

    def _free_name(self, step: int) -> Path:
        """A step is saved twice when sampling runs dry after it: the second gets a serial number."""
        taken = [serial for (number, serial), _ in self._paths() if number == step]
        return self.folder / (f"global_step_{step}.{max(taken) + 1}" if taken else f"global_step_{step}")

    def _sweep_unfinished(self) -> None:
        for path in self.folder.glob(f"{_TEMPORARY}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str = "") -> dict[str, tuple[Any, Any]]:
    """Return the dotted paths at which two nested configs differ, with both values."""
    found: dict[str, tuple[Any, Any]] = {}
    for key in sorted({*one, *other}):
        left, right, path = one.get(key), other.get(key), f"{prefix}{key}"
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found |= differing_keys(left, right, f"{path}.")
        elif left != right:
            found[path] = (left, right)
    return found


def _check_config(found: Found, config: Config) -> None:
    """Refuse a checkpoint of another experiment; tell what may and did change."""
    changed = differing_keys(found.config.model_dump(mode="json"), config.model_dump(mode="json"))
    refused = []
    for key, (was, now) in changed.items():
        if key != "trainer.resume_mode" and not free_to_change(key):
            refused.append(f"{key}: got {now!r}; need {was!r} as in {found.path}")
        elif not key.startswith("trainer."):
            logger.warning("%s: resumed with %r, was %r", key, now, was)
    if refused:
        refused.append("put these back, or set another trainer.default_local_dir, or trainer.resume_mode: disable")
        raise CheckpointError("; ".join(refused))


def _read(path: Path) -> Found:
    """Check every file of a checkpoint and read its state.

    Raises:
        CheckpointError: a file is missing or differs from its checksum.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        damaged = [name for name, checksum in manifest.items() if sha256_of(path / name) != checksum]
        content = json.loads((path / STATE).read_text("utf-8"))
        if damaged or not {STATE, OPTIMIZER} <= set(manifest):
            raise CheckpointError(f"{path}: damaged ({', '.join(damaged) or MANIFEST} differs from its checksum)")
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: got format {content['format']}; need {FORMAT}")
        # Through Config, so that a setting that is newer than the checkpoint counts as its default.
        return Found(path, _state_from(content["state"]), Config.model_validate(content["config"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: damaged ({error})") from error


def _content_of(state: RunState) -> dict[str, Any]:
    """The state as JSON has it. A carried group is scored: what its problem has beside texts has served its purpose."""
    carried = [replace(group, problem=replace(group.problem, extra={}, messages=())) for group in state.carried]
    return asdict(replace(state, carried=carried))


def _group_from(content: Mapping[str, Any]) -> RolloutGroup:
    return RolloutGroup(
        **{
            **content,
            "problem": Problem(**{**content["problem"], "messages": ()}),
            "responses": [_response_from(response) for response in content["responses"]],
            "scores": [Score(**score) for score in content["scores"]],
        }
    )


def _response_from(content: Mapping[str, Any]) -> Response:
    turns = content.get("turns")  # a checkpoint of an earlier version has none
    return Response(**{**content, "turns": None if turns is None else Turns(**turns)})


def _history_from(content: Mapping[str, Any]) -> History:
    """JSON's keys are text."""
    return History({int(index): Evidence(**item) for index, item in content["evidence"].items()})


def _state_from(content: Mapping[str, Any]) -> RunState:
    last = content["last"]
    if last is not None:
        samples = tuple(EvaluatedSample(**sample) for sample in last["evaluation"])
        last = StepMetrics(**{**last, "cost": Cost(**last["cost"]), "evaluation": samples})
    return RunState(
        **{
            **content,
            "cost": Cost(**content["cost"]),
            "last": last,
            # A checkpoint of an earlier version has none of these.
            "carried": [_group_from(group) for group in content.get("carried", ())],
            "account": TokenAccount(**content.get("account", {})),
            "history": _history_from(content.get("history", {"evidence": {}})),
        }
    )


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{index}.{key}": whole_tensor(tensor.detach()).cpu().contiguous()
        for index, values in optimizer.state_dict()["state"].items()
        for key, tensor in values.items()
    }
