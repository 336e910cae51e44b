"""Puts `tests/support` on the path and keeps numeric libraries to one thread, in processes that tests start too."""

import os
import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

# On two cores, two processes of two threads each wait for one another more than they compute.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
