"""The child of `dapo.sandbox`: locks itself in, then runs a program. A script of the standard library alone.

Its input is a request of its parent, its argument a file descriptor that is told `ready`, or why it couldn't be locked
in. It imports little, since each program pays for it: `marshal` and `_ast` are built in, while `json`, `ast` and
`typing` take longer than the interpreter's own start.
"""

from __future__ import annotations

import _ast
import ctypes
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Any

PROGRAM = "<program>"
SIGKILL = 9
SET_PDEATHSIG, SET_NO_NEW_PRIVS, SET_SECCOMP, SECCOMP_FILTER = 1, 38, 22, 2
CREATE_RULESET, ADD_RULE, RESTRICT_SELF, PATH_BENEATH = 444, 445, 446, 1
"""Landlock's system calls, with the same numbers everywhere, and its kind of rule."""
EVERY_ACCESS = (1 << 13) - 1
"""What Landlock's first version knows: executing, reading, writing, making and removing."""
READ_FILE, READ_DIR = 1 << 2, 1 << 3
INSTRUCTION_BYTES = 8

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    """Serve the one request."""
    request = marshal.load(sys.stdin.buffer)
    status = int(sys.argv[1])
    try:
        _lock_in(request)
    except (OSError, ValueError) as error:
        os.write(status, f"{error}".encode())
        sys.exit(1)
    os.write(status, b"ready")
    os.close(status)
    _run(request["code"], request["raised"])


def _lock_in(request: Mapping[str, Any]) -> None:
    """Give up, for good, whatever the program must not have.

    Raises:
        OSError: the kernel refuses.
    """
    _call("prctl", _libc.prctl(SET_PDEATHSIG, SIGKILL, 0, 0, 0))
    if os.getppid() != request["parent"]:
        sys.exit(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    for name, value in request["limits"].items():
        resource.setrlimit(getattr(resource, name), (value, value))
    _call("no_new_privs", _libc.prctl(SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _allow_reading(request["readable"])
    code = request["filter"]
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    program = Program(len(code) // INSTRUCTION_BYTES, ctypes.addressof(buffer))
    _call("seccomp", _libc.prctl(SET_SECCOMP, SECCOMP_FILTER, ctypes.byref(program), 0, 0))


def _allow_reading(paths: Sequence[str]) -> None:
    """Let these files and folders be read, and none else be touched (Landlock)."""
    access = ctypes.c_uint64(EVERY_ACCESS)
    rules = _call("landlock", _libc.syscall(CREATE_RULESET, ctypes.byref(access), ctypes.sizeof(access), 0))
    for path in paths:
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
        rule = allowed.to_bytes(8, sys.byteorder) + place.to_bytes(4, sys.byteorder)
        _call("landlock", _libc.syscall(ADD_RULE, rules, PATH_BENEATH, rule, 0))
        os.close(place)
    _call("landlock", _libc.syscall(RESTRICT_SELF, rules, 0))
    os.close(rules)


def _call(what: str, result: int) -> int:
    """Return what a C function returned, unless it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _run(code: str, raised: int) -> None:
    """Run the program, and print the value of a last line that is an expression; exit with `raised` if it raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        tree: Any = compile(code, PROGRAM, "exec", _ast.PyCF_ONLY_AST)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], _ast.Expr) else None
        exec(compile(tree, PROGRAM, "exec"), names)
        if last is not None:
            value = eval(compile(_ast.Expression(last.value), PROGRAM, "eval"), names)
            if value is not None:
                print(value)
    except SystemExit:
        raise
    except BaseException as error:
        _release(names, error.__traceback__)
        import linecache
        import traceback

        linecache.cache[PROGRAM] = len(code), None, code.splitlines(keepends=True), PROGRAM
        told = traceback.TracebackException.from_exception(error)
        told.stack = traceback.StackSummary.from_list([frame for frame in told.stack if frame.filename == PROGRAM])
        print(*told.format(), sep="", end="", file=sys.stderr)
        sys.exit(raised)


def _release(names: dict[str, Any], trace: TracebackType | None) -> None:
    """Give back what a program held that raised: telling how it ended takes memory, which may be all used up."""
    names.clear()
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == PROGRAM:
            trace.tb_frame.clear()
        trace = trace.tb_next


if __name__ == "__main__":
    main()
