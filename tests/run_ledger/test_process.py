"""Seeing that a process is gone, and never that of a living one."""

import os
import subprocess
import sys

from run_ledger.process import pid_scope, process_started, surely_gone


def test_this_process_lives() -> None:
    started = process_started(os.getpid())
    assert started is not None
    assert not surely_gone(pid_scope(), os.getpid(), started)


def test_a_reused_id_is_another_process() -> None:
    started = process_started(os.getpid())
    assert started is not None
    assert surely_gone(pid_scope(), os.getpid(), started - 1)


def test_a_process_of_another_machine_or_container_may_live() -> None:
    assert not surely_gone("another boot", 2**22, 1.0)
    assert not surely_gone("", 2**22, 1.0)


def test_a_killed_process_is_gone_even_as_a_zombie() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        started = process_started(process.pid)
        assert started is not None and not surely_gone(pid_scope(), process.pid, started)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not collected: a zombie
        assert surely_gone(pid_scope(), process.pid, started)
    assert surely_gone(pid_scope(), process.pid, started)
