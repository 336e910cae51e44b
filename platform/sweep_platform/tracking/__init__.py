"""MLflow as a view of the ledger: the live projection, its repair, and its page.

The ledger is the truth; whatever is here can be deleted and rebuilt. MLflow itself is imported on first use.
"""

from __future__ import annotations

from sweep_platform.tracking.observer import MLflowObserver
from sweep_platform.tracking.registry import Registered, register
from sweep_platform.tracking.server import serve
from sweep_platform.tracking.store import Store
from sweep_platform.tracking.sync import sync

__all__ = ["MLflowObserver", "Registered", "Store", "register", "serve", "sync"]
