"""Puts `tests/support` on the path, keeps numeric libraries to one thread, in processes that tests start too, and has a
ledger in an empty home.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from run_ledger import Ledger
from sweep_platform.home import Home

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)

# On two cores, two processes of two threads each wait for one another more than they compute.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def ledger(home: Home) -> Iterator[Ledger]:
    with Ledger.open(home.ledger_url) as ledger:
        yield ledger
