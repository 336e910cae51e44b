import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from dapo.errors import DapoError
from dapo.grader_math_verify import MEMORY_GB, make_math_verify
from dapo.killable import SENT_AT_ONCE, Failed, Pool, Task, Worker
from dapo.reward_function import make_custom_reward

TOWERS = ["9^{9^{9^{9}}}", "9^{9^{9}}", "2^{2^{2^{2^{2^{2}}}}}", "(((9!)!)!)!"]


def asking(*texts: str) -> list[dict[str, object]]:
    return [{"data_source": "", "solution_str": text, "ground_truth": "", "extra_info": {}} for text in texts]


def task(name: str) -> Task:
    return Task(make_custom_reward, (f"dapo_test_rewards:{name}", 1.0))


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(task("stubborn"), 1.0)
    yield worker
    worker.close()


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("sleep", "Timeout", "longer than 1 s"),
        ("compute", "Timeout", "longer than 1 s"),
        ("die", "Died", "SIGSEGV"),
        ("leave", "Died", "exit code 3"),
        ("exit", "SystemExit", "enough"),
    ],
)
def test_a_call_that_hangs_or_dies_fails_alone(worker: Worker, text: str, kind: str, reason: str) -> None:
    results = worker.run(asking("fine", text, "fine", text, "fine"))
    assert [getattr(result, "score", None) for result in results] == [1.0, None, 1.0, None, 1.0]
    for failed in (results[1], results[3]):
        assert isinstance(failed, Failed)
        assert failed.kind == kind
        assert reason in failed.reason


def test_towers_of_powers_have_their_time_and_no_more() -> None:
    worker = Worker(Task(make_math_verify, memory_gb=MEMORY_GB), 2.0)
    calls = [{"response": f"Answer: $\\sqrt{{{n}}}$", "ground_truth": "2\\sqrt{2}"} for n in (8, 9)]
    worker.run(calls)
    start = time.monotonic()
    results = worker.run([{"response": f"\\boxed{{{TOWERS[1]}}}", "ground_truth": "42"}, *calls])
    assert time.monotonic() - start < 10.0
    assert results[0] == Failed("Timeout", "it took longer than 2 s")
    assert [result.correct for result in results[1:]] == [True, False]
    worker.close()


@pytest.mark.parametrize("tower", TOWERS)
def test_no_tower_is_right(tower: str) -> None:
    worker = Worker(Task(make_math_verify, memory_gb=MEMORY_GB), 1.0)
    result = worker.run([{"response": f"\\boxed{{{tower}}}", "ground_truth": "42"}])[0]
    assert isinstance(result, Failed) or not result.correct
    worker.close()


def test_works_off_the_main_thread(worker: Worker) -> None:
    """An alarm fails there, and public trainers scored every answer 0; the child has a main thread of its own."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.extend(worker.run(asking("alarm", "sleep", "fine"))))
    thread.start()
    thread.join()
    assert [getattr(result, "score", "failed") for result in found] == [1.0, "failed", 1.0]


def test_one_child_serves_every_batch_until_it_is_killed() -> None:
    worker = Worker(task("counting"), 10.0)
    first = worker.run(asking("a", "b"))
    second = worker.run(asking("c"))
    assert [score.extra["calls"] for score in first + second] == [1, 2, 3]
    child = int(first[0].extra["process"])
    assert child != os.getpid()
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert worker.run(asking("d"))[0].extra["calls"] == 1
    worker.close()


def test_the_workers_of_a_pool_share_a_batch_and_keep_its_order() -> None:
    pool = Pool(task("counting"), 10.0, size=2)
    results = pool.run(asking(*"abcde"))
    assert [result.extra["calls"] for result in results] == [1, 1, 2, 2, 3]
    assert len({result.extra["process"] for result in results}) == 2
    assert pool.run([]) == []
    pool.close()


def test_a_batch_may_be_larger_than_a_message(worker: Worker) -> None:
    texts = ["fine"] * (2 * SENT_AT_ONCE + 1)
    texts[SENT_AT_ONCE - 1] = texts[SENT_AT_ONCE] = "exit"
    texts[-1] = "leave"
    results = worker.run(asking(*texts))
    assert [getattr(result, "kind", "fine") for result in results] == [
        {"exit": "SystemExit", "leave": "Died"}.get(text, "fine") for text in texts
    ]


def test_what_can_not_be_made_is_told() -> None:
    with pytest.raises(DapoError, match="DapoError: it can't be imported"):
        Worker(task("nosuch"), 1.0).run(asking("a"))


def test_children_that_never_start_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer would be wrong for a reason that isn't the model's."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(DapoError, match="the grading process can't be started"):
        Worker(task("stubborn"), 1.0).run(asking("a"))


def test_printing_is_not_the_trainers_output(worker: Worker, capfd: pytest.CaptureFixture[str]) -> None:
    assert worker.run(asking("print"))[0].score == 1.0
    worker.close()
    assert capfd.readouterr() == ("", "no output of the trainer's\n")


def test_an_interrupted_batch_leaves_no_answers_for_the_next(worker: Worker) -> None:
    worker.run(asking("fine"))
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        worker.run(asking("fine", "sleep", "fine"))
    timer.join()
    assert [result.kind for result in worker.run(asking("exit"))] == ["SystemExit"]


def wait_until(done: Callable[[], bool]) -> bool:
    end = time.monotonic() + 10
    while not done() and time.monotonic() < end:
        time.sleep(0.05)
    return done()


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    # Nobody may have collected it yet.
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_a_hung_child_does_not_outlive_a_killed_trainer() -> None:
    script = (
        "import sys; from dapo.killable import Worker, Task; from dapo.reward_function import make_custom_reward\n"
        "worker = Worker(Task(make_custom_reward, ('dapo_test_rewards:stubborn', 1.0)), 600.0)\n"
        "call = {'data_source': '', 'ground_truth': '', 'extra_info': {}}\n"
        "worker.run([call | {'solution_str': 'fine'}])\n"
        "print(worker._child.process.pid, flush=True)\n"
        "worker.run([call | {'solution_str': 'sleep'}])\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as trainer:
        assert trainer.stdout is not None
        child = int(trainer.stdout.readline())
        time.sleep(0.2)
        assert not is_gone(child)
        trainer.send_signal(signal.SIGKILL)
    assert wait_until(lambda: is_gone(child))


def test_the_kernel_ends_a_call_that_computes_far_beyond_its_limit() -> None:
    """It holds the interpreter, so that no thread of its process could see that the parent is gone."""
    script = (
        "import os; os.cpu_count = lambda: 1\nfrom dapo.killable_child import limit_cpu\nlimit_cpu(0.1)\n3 ** 10**9\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, check=False, timeout=60)
    assert ended.returncode == -signal.SIGXCPU
