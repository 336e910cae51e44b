"""Puts the repository's root on the path, from where `benchmarks` is imported, in processes that it starts too."""

import os
import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[2])

if ROOT not in sys.path:
    sys.path.insert(0, ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
