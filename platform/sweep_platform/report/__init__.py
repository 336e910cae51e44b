"""A sweep as one page that needs nothing but itself: what was asked, found and spent, and how to go on."""

from __future__ import annotations

from sweep_platform.report.page import write_report

__all__ = ["write_report"]
