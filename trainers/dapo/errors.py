"""What can end a training run, besides a bug.

    DapoError
    ├── DataError            a file that can't be read, or has no usable rows
    ├── FetchError           a public set that can't be downloaded
    ├── ModelError           a folder that holds no model of a supported family
    ├── NonFinite            a loss, gradient or log-prob that is NaN or infinite
    ├── SamplingExhausted    still short of groups after `max_num_gen_batches` rounds
    └── CheckpointError      a checkpoint of another config, or a damaged one

Each message can be shown to a user as it is.
"""

from __future__ import annotations

from dapo.batch import Fault


class DapoError(Exception):
    """A training run ended for a reason that can be told in one line."""


class DataError(DapoError):
    """A data set can't be read or is empty.

    Args:
        faults: everything wrong with it, each with its place.
    """

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


class FetchError(DapoError):
    """A public data set can't be downloaded."""


class ModelError(DapoError):
    """A model can't be loaded."""


class NonFinite(DapoError):
    """A number that must be finite is not."""


class SamplingExhausted(DapoError):
    """Dynamic sampling hit its cap; a checkpoint was saved, so that the run can be resumed with other knobs."""


class CheckpointError(DapoError):
    """A checkpoint can't be used."""
