"""Executors: where trials run. Both leave the same ledger for the same seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from sweep_platform.driver import Driver

ExecutorName = Literal["inline", "ray"]


class Executor(Protocol):
    """Runs a driver's trials until nothing is left to start."""

    def run(self, driver: Driver) -> None:
        """Run trials until `driver.next_trial()` gives None.

        Raises:
            BadInput: the cluster has no room for a trial.
            PlatformError: the sweep can't go on: preparation failed, or there is no cluster.
            KeyboardInterrupt: as the user pressed it; trials that were running are continued by the next run.
        """


def make_executor(name: ExecutorName, *, address: str | None = None) -> Executor:
    """Return an executor by name.

    Args:
        name: `inline` (this process, one trial after the other) or `ray` (processes, local or on a cluster).
        address: ray: a cluster to join; None starts one here.
    """
    if name == "inline":
        from sweep_platform.executors.inline import InlineExecutor

        return InlineExecutor()
    from sweep_platform.executors.ray import RayExecutor

    return RayExecutor(address)
