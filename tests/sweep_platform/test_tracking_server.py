"""MLflow's page: started, found, stopped."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from sweep_platform.errors import BadInput
from sweep_platform.tracking import Store, serve

CODE = """
import sys
from pathlib import Path
from sweep_platform.tracking import Store, serve
serve(Store(sys.argv[1], Path(sys.argv[2])), announce=lambda url: print(url, flush=True))
print("stopped", flush=True)
"""


@pytest.mark.slow
def test_page_is_announced_once_it_answers_and_stops_with_its_children(tmp_path):
    uri = f"sqlite:///{tmp_path}/home/mlflow.db"
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, uri, str(tmp_path / "art")], stdout=subprocess.PIPE, text=True
    )
    try:
        url = process.stdout.readline().strip()
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5):
            pass
        children = psutil.Process(process.pid).children(recursive=True)
        sockets = [found for child in children for found in child.net_connections() if found.status == "LISTEN"]
        assert sockets and {found.laddr.ip for found in sockets} == {"127.0.0.1"}
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline().strip() == "stopped"
        assert process.wait(20) == 0
        _, alive = psutil.wait_procs(children, timeout=5)
        assert not alive
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.stdout.close()
        process.wait()


def test_taken_port_is_refused():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"--port: got {port}, which is taken; need a port"):
            serve(Store("sqlite:///nowhere.db", Path("art")), port)
    assert not Path("nowhere.db").exists()


def test_a_remote_server_is_only_announced():
    told = []
    serve(Store("https://mlflow.example.org", Path("art")), announce=told.append)
    assert told == ["https://mlflow.example.org"]
