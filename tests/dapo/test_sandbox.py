"""Programs that do what they must not: each is stopped alone, and what it harmed is nothing."""

import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dapo.sandbox
import psutil
import pytest
from dapo.errors import DapoError
from dapo.sandbox import CHILD, MAX_OUTPUT, NO_OUTPUT, Limits, Outcome, run_python, sandbox_fault
from dapo.sandbox_filter import ARCHITECTURES, call_filter

LIMITS = Limits(2.0, 256)
PATIENT = Limits(20.0, 256)


@pytest.fixture(scope="module", autouse=True)
def available() -> None:
    """These tests are about a machine that can lock programs in; what happens elsewhere is tested below."""
    assert sandbox_fault() is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print(6 * 7)", "42"),
        ("6 * 7", "42"),
        ("x = 6\nprint('a')\nx * 7", "a\n42"),
        ("x = 1", NO_OUTPUT),
        ("", NO_OUTPUT),
        ("print('é😀')", "é😀"),
        ("import sys; sys.exit()", NO_OUTPUT),
        ("import math, decimal, fractions, statistics, random, sqlite3; math.comb(10, 3)", "120"),
        ("def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nf(15)", "610"),
        ("import threading\nt = threading.Thread(target=print, args=(1,))\nt.start(); t.join()", "1"),
        ("if __name__ == '__main__': print('main')", "main"),
    ],
)
def test_programs_that_are_fine(code: str, text: str) -> None:
    assert run_python(code, PATIENT) == Outcome(text, failed=False)


@pytest.mark.parametrize(
    ("code", "last"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("x = = 2", "SyntaxError: invalid syntax"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy'"),
        ("print('\\ud800')", "surrogates not allowed"),
        ("'\ud800'", "surrogates not allowed"),
        ("(" * 1000, "too many nested parentheses"),
        ("input()", "EOFError: EOF when reading a line"),
        ("import sys; print('a'); sys.exit(3)", "a\nerror: it ended with exit code 3"),
        ("import ctypes; ctypes.string_at(0)", "error: it was ended by SIGSEGV"),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\xfe'); 1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_programs_that_fail_are_told_why(code: str, last: str) -> None:
    outcome = run_python(code, PATIENT)
    assert outcome.failed
    assert outcome.text.endswith(last)


def test_a_traceback_is_of_the_program_alone() -> None:
    text = run_python("def f(n):\n    return 1 / n\nprint('before')\nf(0)", PATIENT).text
    assert text.startswith(
        'before\nTraceback (most recent call last):\n  File "<program>", line 4, in <module>\n    f(0)'
    )
    assert str(CHILD) not in text


def test_output_that_is_no_text_is_shown_as_well_as_can_be() -> None:
    assert run_python("import sys; sys.stdout.buffer.write(b'\\xffa\\n'); None", PATIENT) == Outcome("\ufffda", False)


@pytest.mark.parametrize(
    "code",
    [
        "print('started')\nwhile True: pass",
        "print('started')\nimport time; time.sleep(600)",
        "print('started')\n3 ** 10**9",
        "print('started')\nimport os, time; os.close(1); os.close(2); time.sleep(600)",
        "print('started')\nimport threading, time; threading.Thread(target=time.sleep, args=(600,)).start()",
        "print('started')\nimport signal\n"
        "for n in {*range(1, 32)} - {9, 19}: signal.signal(n, signal.SIG_IGN)\n"
        "while True: pass",
    ],
)
def test_a_program_that_never_ends_has_its_time_and_no_more(code: str) -> None:
    start = time.monotonic()
    outcome = run_python(code, Limits(1.0, 256))
    assert outcome == Outcome("started\nerror: it took longer than 1 s", failed=True)
    assert time.monotonic() - start < 10.0


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(10**9)",
        "x = [0]\nwhile True: x += x",
        "x = []\nwhile True: x.append(bytearray(10**6))",
        "import mmap; mmap.mmap(-1, 10**9)",
    ],
)
def test_memory_has_a_bound(code: str) -> None:
    outcome = run_python(code, PATIENT)
    assert outcome.failed
    assert "MemoryError" in outcome.text or "Cannot allocate memory" in outcome.text


def test_the_bound_of_memory_is_the_one_that_is_set() -> None:
    code = "len(bytearray(300 * 2**20))"
    assert run_python(code, Limits(20.0, 512)) == Outcome(str(300 * 2**20), failed=False)
    assert run_python(code, Limits(20.0, 256)).failed


def test_output_has_a_bound() -> None:
    outcome = run_python("while True: print('x' * 999)", PATIENT)
    assert outcome.failed
    assert outcome.text.endswith(f"error: it printed more than {MAX_OUTPUT} bytes")
    assert len(outcome.text) < MAX_OUTPUT + 100


REFUSED = {
    "fork": "import os\nwhile True: os.fork()",
    "spawn": "import subprocess; subprocess.run(['/bin/true'])",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "processes": "import multiprocessing; multiprocessing.Process(target=print).start()",
    "write": "open('{folder}/x', 'w')",
    "append": "open('{folder}/there', 'a')",
    "truncate on reading": "import os; os.open('{folder}/there', os.O_RDONLY | os.O_TRUNC)",
    "nameless file": "import os; os.open('{folder}', os.O_TMPFILE | os.O_RDWR)",
    "write here": "open('x', 'w')",
    "temporary file": "import tempfile; tempfile.TemporaryFile()",
    "device": "open('/dev/null', 'w')",
    "remove": "import os; os.unlink('{folder}/there')",
    "rename": "import os; os.rename('{folder}/there', '{folder}/elsewhere')",
    "folder": "import os; os.mkdir('{folder}/x')",
    "link": "import os; os.symlink('/', '{folder}/x')",
    "mode": "import os; os.chmod('{folder}/there', 0)",
    "owner": "import os; os.chown('{folder}/there', 1, 1)",
    "times": "import os; os.utime('{folder}/there')",
    "attribute": "import os; os.setxattr('{folder}/there', 'user.a', b'')",
    "read": "open('{folder}/there').read()",
    "read a password file": "open('/etc/passwd').read()",
    "list": "import os; os.listdir('{folder}')",
    "environment of the trainer": "import os; open(f'/proc/{{os.getppid()}}/environ').read()",
    "memory of the trainer": "import os; open(f'/proc/{{os.getppid()}}/mem', 'rb').read()",
    "kill": "import os; os.kill({other}, 9)",
    "kill a group": "import os; os.killpg({other}, 9)",
    "signal by owning a file": "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, {other})",
    "limits of another process": "import resource; resource.prlimit({other}, resource.RLIMIT_CPU, (1, 1))",
    "own limits": "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))",
    "memory outside the limit": "import os; os.memfd_create('x')",
    "socket": "import socket; socket.socket()",
    "name look-up": "import socket; socket.getaddrinfo('localhost', 80)",
    "pair of sockets": "import socket; socket.socketpair()",
}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Path]:
    """A folder that must be the same afterwards."""
    (tmp_path / "there").write_text("secret")
    before = [(path, path.stat().st_mtime_ns, path.stat().st_mode) for path in (tmp_path, tmp_path / "there")]
    yield tmp_path
    assert [(path, path.stat().st_mtime_ns, path.stat().st_mode) for path, *_ in before] == before
    assert (tmp_path / "there").read_text() == "secret"
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]


@pytest.fixture(scope="module")
def other() -> Iterator[int]:
    """A process that must live on."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        assert process.poll() is None
        process.kill()


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_program_must_not_do_is_refused(watched: Path, other: int, name: str) -> None:
    outcome = run_python(REFUSED[name].format(folder=watched, other=other), PATIENT)
    assert outcome.failed
    assert "secret" not in outcome.text
    assert re.search(r"PermissionError|FileNotFoundError|ValueError: not allowed|name resolution$", outcome.text)


@pytest.mark.parametrize(
    "call",
    ["unshare(0x10000000)", "ptrace(16, {other}, 0, 0)", "setns(0, 0)", "mount(0, 0, 0, 0, 0)", "chroot(b'/')"]
    + ["syscall(425, 8, 0)", "syscall(424, 0, 9, 0, 0)", "prctl(1, 0, 0, 0, 0)", "setuid(1)"],
)
def test_calls_of_the_kernel_that_python_hides_are_refused_too(other: int, call: str) -> None:
    code = f"import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.{call}, ctypes.get_errno())"
    assert run_python(code.format(other=other), PATIENT).text == "-1 1"


@pytest.mark.parametrize("family", ["inet", "unix"])
def test_a_server_that_is_there_can_not_be_reached(family: str, tmp_path: Path) -> None:
    kind, address = (socket.AF_INET, ("127.0.0.1", 0)) if family == "inet" else (socket.AF_UNIX, str(tmp_path / "s"))
    with socket.socket(kind) as server:
        server.bind(address)
        server.listen()
        server.settimeout(0.2)
        at = server.getsockname()
        code = f"import socket\ns = socket.socket({int(kind)})\ns.connect({at!r})\ns.send(b'out')"
        assert "PermissionError" in run_python(code, PATIENT).text
        with pytest.raises(TimeoutError):
            server.accept()
        with socket.socket(kind) as client:  # that the server is to blame is ruled out
            client.connect(at)
            server.accept()[0].close()


def test_a_program_starts_with_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("API_KEY", "hidden")
    with open(tmp_path / "held", "w") as held:
        os.set_inheritable(held.fileno(), True)
        code = (
            "import os, sys\nopen_files = []\n"
            "for n in range(64):\n"
            "    try: os.fstat(n)\n"
            "    except OSError: continue\n"
            "    open_files.append(n)\n"
            "print(open_files, sorted(os.environ), os.getcwd(), [p for p in sys.path if 'site-packages' in p])"
        )
        outcome = run_python(code, PATIENT)
    assert outcome.text == "[0, 1, 2] ['LC_CTYPE', 'PYTHONHASHSEED'] / []"


def test_sets_are_printed_in_the_same_order_each_time() -> None:
    code = "print(set('abcdefghij'))"
    assert len({run_python(code, PATIENT).text for _ in range(3)}) == 1


def test_programs_run_side_by_side_and_a_slow_one_costs_its_own_time() -> None:
    codes = ["import time; time.sleep(600)", *[f"print({number})" for number in range(6)]]
    start = time.monotonic()
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda code: run_python(code, LIMITS), codes))
    assert [outcome.text for outcome in outcomes[1:]] == list(map(str, range(6)))
    assert outcomes[0].text == "error: it took longer than 2 s"
    assert time.monotonic() - start < 20.0


def test_descriptors_and_processes_do_not_pile_up() -> None:
    before, children = sorted(os.listdir("/proc/self/fd")), psutil.Process().children()
    for code in ("1", "1 / 0", "print('x' * 10**6)"):
        run_python(code, PATIENT)
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert psutil.Process().children() == children


def test_a_process_with_many_open_files_can_run_programs(tmp_path: Path) -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        assert run_python("6 * 7", PATIENT).text == "42"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_program_does_not_outlive_a_killed_trainer() -> None:
    script = (
        "import os, threading\nfrom dapo.sandbox import Limits, run_python\n"
        "threading.Thread(target=run_python, args=('while True: pass', Limits(600.0, 256))).start()\n"
        "import psutil, time\nwhile not (children := psutil.Process().children()): pass\n"
        "time.sleep(1)\nprint(children[0].pid, flush=True)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        program = Path("/proc") / trainer.stdout.readline().decode().split()[0]
        assert b"sandbox_child" in (program / "cmdline").read_bytes()
        trainer.kill()
    end = time.monotonic() + 10
    while program.exists() and "Z" not in (program / "stat").read_text().rpartition(")")[2] and time.monotonic() < end:
        time.sleep(0.05)
    assert not program.exists() or "Z" in (program / "stat").read_text().rpartition(")")[2]


def test_without_a_lock_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without seccomp refuses the filter; here one that no kernel takes."""
    monkeypatch.setattr(dapo.sandbox, "call_filter", lambda machine: b"\0" * 8)
    with pytest.raises(DapoError, match="no process can be locked in .*seccomp: Invalid argument"):
        run_python("print('loose')", PATIENT)
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(DapoError, match="no sandbox for linux on riscv64"):
        run_python("print('loose')", PATIENT)


def test_an_interpreter_that_does_not_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DapoError, match=r"locked in \(it died\)"):
        run_python("1", PATIENT)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(DapoError, match="no process can be started"):
        run_python("1", PATIENT)


def test_works_off_the_main_thread() -> None:
    found: list[Outcome] = []
    thread = threading.Thread(target=lambda: found.append(run_python("6 * 7", PATIENT)))
    thread.start()
    thread.join()
    assert found == [Outcome("42", failed=False)]


def test_numbers_of_calls_are_those_of_the_kernels_headers() -> None:
    """On this machine's architecture, where its headers are at hand; the others' were read from the same source."""
    from dapo.sandbox_filter import _numbers

    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if platform.machine() == "x86_64" and header.is_file():
        known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
        assert {name: known[name] for name in _numbers(1)} == _numbers(1)
    generic = Path("/usr/include/asm-generic/unistd.h")
    if generic.is_file():
        found = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)", generic.read_text())
        numbers = {name.replace("fstatat", "newfstatat"): int(number) for name, number in found}
        ours = _numbers(2)
        assert {name: numbers[name] for name in ours} == ours


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_each_filter_is_short_enough_for_the_kernel(machine: str) -> None:
    assert 8 * 50 < len(call_filter(machine)) < 8 * 4096


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError"),
        ("def f(x):\n    while True: x.append(bytearray(10**6))\nf([])", "MemoryError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise BaseException('x')", "BaseException: x"),
    ],
)
def test_whatever_is_raised_is_told_of_the_program_alone(code: str, text: str) -> None:
    """Without the machine's paths: a response must not depend on where the trainer is installed."""
    outcome = run_python(code, Limits(60.0, 128))
    assert outcome.failed
    assert outcome.text.startswith('Traceback (most recent call last):\n  File "<program>", line ')
    assert outcome.text.endswith(f"\n{text}")
    assert str(CHILD) not in outcome.text and "importlib" not in outcome.text
