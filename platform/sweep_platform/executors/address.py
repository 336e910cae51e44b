"""Whether a cluster's address answers, found out without Ray."""

from __future__ import annotations

import socket

from sweep_platform.errors import BadInput, Fault, one_line

ANSWER_S = 5.0
"""Seconds in which an address must accept a connection."""


def check_address(address: str) -> None:
    """Find out within seconds whether anything listens there; Ray itself tries for minutes.

    Raises:
        BadInput: nothing does.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():
        return  # such as "auto", which Ray looks up on this machine
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
    except (OSError, OverflowError) as error:
        need = "the address of a Ray cluster that answers"
        do = "check it with `ray status`, or leave it out to start Ray here"
        raise BadInput([Fault("--address", f"{address} ({one_line(error)})", need, do)]) from error
