"""One of several processes that load a model in parts; it says what it took, and whether the parts are the model's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from dapo.config import Config
from dapo.device import choose_device
from dapo.model import Policy, load_policy
from dapo.parallel import World, processes_end_together
from dapo.sharding import shard, whole_tensor
from safetensors.torch import load_file


def peak_mb() -> float:
    """This process's own; getrusage also counts whoever started it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Load the folder; `first` shards before the weights are read, `after` afterwards, as if they were small."""
    folder, when, fsdp_size, compare = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "compare"
    config = Config.model_validate({"actor": {"fsdp_config": {"fsdp_size": fsdp_size}}})
    with processes_end_together():
        world = World.of(config, choose_device("cpu"))

        def spread(policy: Policy) -> None:
            policy.world = world
            shard(policy, config.actor.fsdp_config)

        spread(load_policy(sys.argv[5]))  # so that what FSDP loads doesn't count
        before = peak_mb()
        policy = load_policy(folder, spread=spread if when == "first" else None)
        if when != "first":
            spread(policy)
        said = {"grown": peak_mb() - before}
        if compare:
            files = load_file(folder / "model.safetensors")
            said["same"] = all(
                torch.equal(whole_tensor(weight.detach()), files[name].float())
                for name, weight in policy.model.named_parameters()
            )
        if world.leads:
            sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
