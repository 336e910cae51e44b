"""Puts `tests/support` on the path, here and for the processes that tests start."""

import sys
from pathlib import Path

SUPPORT = str(Path(__file__).parent / "support")

if SUPPORT not in sys.path:
    sys.path.insert(0, SUPPORT)
