"""A complete DAPO trainer (Decoupled clip and Dynamic sAmpling Policy Optimization, arXiv 2503.14476).

Its interface is `dapo.trainer`; importing this package loads pydantic and nothing heavier.
"""

from __future__ import annotations

from dapo.batch import Fault, Progress, Report, StepMetrics
from dapo.config import Config

__all__ = ["Config", "Fault", "Progress", "Report", "StepMetrics"]
