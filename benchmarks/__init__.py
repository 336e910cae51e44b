"""Every figure that the project claims: `python -m benchmarks NAME` measures it again.

A benchmark is a module here with `run() -> dict` that returns `question`, `goal`, `measured`, `met`, `peers` (each
with version and figure) and `runs` (every single measurement). Ratios are against a peer in the same run, medians
over the runs.
"""
