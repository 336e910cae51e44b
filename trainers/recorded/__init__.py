"""A simulator: replays recorded runs of the trainer `dapo`, with their true costs and noise, in milliseconds.

Search methods are compared with it (`benchmarks/search.py`), and sweeps are tried out: any sweep of `dapo` over the
knobs that were recorded works unchanged with `trainer: recorded`. The table `runs.parquet` is made by
`python -m benchmarks._record_runs FOLDER`: 114 configs over the space of `sweeps/aime.yaml`, every third under two
seeds, 40 updates each. A config and seed of the table is replayed as it was. Anything between is answered by a Gaussian
process over the table (`recorded.surrogate`) plus noise as the pairs of seeds show it, drawn by config and seed. How
well it predicts a config that it hasn't seen is measured by `python -m benchmarks recorded`. What was never recorded is
refused before the run (`recorded.limits`); the held-out problems alone, on which `platform confirm` runs the front
again, are answered by the surrogate. Evaluations have no samples, since none were recorded.
"""

from __future__ import annotations
