"""Which system calls a sandboxed program may make, as a filter that the kernel applies (seccomp, classic BPF).

What isn't listed fails with EPERM, which Python reports as PermissionError. The list holds what concerns the process
itself alone: no sockets, no other processes or signals to them, nothing that writes or changes a file. Numbers are
those of Linux's `asm/unistd_64.h` and `asm-generic/unistd.h`.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping, Sequence

ARCHITECTURES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}
"""Of `platform.machine()`: the kernel's AUDIT_ARCH number, and the column of the table below."""

_CALLS = """
read 0 63            readv 19 65           pread64 17 67         write 1 64            writev 20 66
lseek 8 62           close 3 57            close_range 436 436   dup 32 23             dup3 292 24
stat 4 -             lstat 6 -             fstat 5 80            newfstatat 262 79     statx 332 291
access 21 -          faccessat 269 48      faccessat2 439 439    readlink 89 -         readlinkat 267 78
getdents64 217 61    getcwd 79 17          mmap 9 222            munmap 11 215         mremap 25 216
mprotect 10 226      madvise 28 233        brk 12 214            membarrier 324 283    futex 202 98
set_robust_list 273 99                     get_robust_list 274 100                     rseq 334 293
exit 60 93           exit_group 231 94     restart_syscall 219 128                     sched_yield 24 124
rt_sigaction 13 134  rt_sigprocmask 14 135 rt_sigreturn 15 139   sigaltstack 131 132   sched_getaffinity 204 123
alarm 37 -           pause 34 -            getitimer 36 102      setitimer 38 103      poll 7 -
ppoll 271 73         select 23 -           pselect6 270 72       nanosleep 35 101      clock_nanosleep 230 115
clock_gettime 228 113                      clock_getres 229 114  gettimeofday 96 169   time 201 -
times 100 153        getrusage 98 165      getrlimit 97 163      getrandom 318 278     uname 63 160
sysinfo 99 179       getpid 39 172         gettid 186 178        getppid 110 173       getpgrp 111 -
getuid 102 174       geteuid 107 175       getgid 104 176        getegid 108 177       getgroups 115 158
open 2 -             openat 257 56         fcntl 72 25           clone 56 220          clone3 435 435
ioctl 16 29          prlimit64 302 261
"""
"""Name, number on x86_64, number on aarch64; `-` where there is none."""

_WRITING = 0o3 | 0o100 | 0o1000
"""O_ACCMODE, O_CREAT and O_TRUNC; O_TMPFILE needs one of the first."""
_CLONE_THREAD = 0x10000
_DUPLICATING = (0, 1, 2, 3, 1030)
"""`fcntl`: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC. F_SETOWN could send signals."""

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_ARGUMENTS = 16
"""Offset of the first argument in `struct seccomp_data`; before it are the number, the architecture and a pointer."""

Instruction = tuple[int, int, int, int]
"""Code, jump if true, jump if false, operand."""


def call_filter(machine: str) -> bytes:
    """Return the filter's program for a kind of machine, one of `ARCHITECTURES`."""
    architecture, column = ARCHITECTURES[machine]
    numbers = _numbers(column)
    conditions: Mapping[str, Sequence[Sequence[Instruction]]] = {
        "open": [_masked(1, _WRITING, 0)],
        "openat": [_masked(2, _WRITING, 0)],
        "fcntl": [_masked(1, 0xFFFFFFFF, value) for value in _DUPLICATING],
        "clone": [_masked(0, _CLONE_THREAD, _CLONE_THREAD)],
        # The query: no new limit, by either half of the pointer to it.
        "prlimit64": [[*_word(_ARGUMENTS + 16, 3), *_word(_ARGUMENTS + 20, 1), (_RETURN, 0, 0, _ALLOW)]],
    }
    errors = {"clone3": errno.ENOSYS, "ioctl": errno.ENOTTY}
    program: list[Instruction] = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    for name, number in numbers.items():
        body = [step for condition in conditions.get(name, []) for step in condition]
        if name in errors:
            body = [(_RETURN, 0, 0, _ERRNO | errors[name])]
        elif name not in conditions:
            body = [(_RETURN, 0, 0, _ALLOW)]
        else:
            body.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
        program += [(_LOAD, 0, 0, 0), (_EQUAL, 0, len(body), number), *body]
    program.append((_RETURN, 0, 0, _ERRNO | errno.EPERM))
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def _numbers(column: int) -> dict[str, int]:
    words = iter(_CALLS.split())
    rows = zip(words, words, words, strict=True)
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def _word(offset: int, otherwise: int) -> Sequence[Instruction]:
    """Go on if a word is zero; skip `otherwise` instructions if not."""
    return [(_LOAD, 0, 0, offset), (_EQUAL, 0, otherwise, 0)]


def _masked(argument: int, mask: int, value: int) -> Sequence[Instruction]:
    """Allow a call with such an argument, of which the lower half counts, as the kernel reads these."""
    return [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        (_AND, 0, 0, mask),
        (_EQUAL, 0, 1, value),
        (_RETURN, 0, 0, _ALLOW),
    ]
