"""How programs on Ray end: nothing of ours is left, and nothing of others is touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.ray_nodes import Nodes
from tests.unit.backends.test_processes_exit import ROOT, gone_within

WATCHDOG_SECONDS = 200.0  # where Ray starts on a busy machine

HEAD = """
import os, sys, threading, time
from tests.unit.backends import workers
from zephon_mm.backends import *
"""


def start(tmp_path: Path, body: str, **environment: str) -> subprocess.Popen[str]:
    """A script in a process group of its own, as a shell starts it; warnings are errors."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + body)
    return subprocess.Popen(
        [sys.executable, "-u", "-X", "dev", "-W", "error", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        process_group=0,
    )


def tree(pid: int) -> set[int]:
    return {child.pid for child in psutil.Process(pid).children(recursive=True)}


LOCAL = """
if __name__ == "__main__":
    backend = RayBackend(2, budget=ByteBudget(1 << 20))
    again = RayBackend(1)  # shares the cluster, whatever its CPUs
    big = [b.submit(workers.filled, (1, 1 << 20)).result() for b in (backend, again)]
    again.close()
    print(backend._end._session.folder)
    tickets = [backend.submit(workers.nap, 60) for _ in range(3)]
    print("now")
    tickets[0].result()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_local_cluster_ends_with_its_program(tmp_path: Path, how: signal.Signals) -> None:
    """Z03: killed; or by Ctrl-C, which the terminal sends to the whole group."""
    shared = set(os.listdir("/dev/shm"))
    process = start(tmp_path, LOCAL)
    assert process.stdout is not None
    folder = process.stdout.readline().strip()
    assert Path(folder).is_dir(), folder + process.stdout.read()
    assert process.stdout.readline() == "now\n"
    running = tree(process.pid)
    assert len(running) > 6
    if how == signal.SIGKILL:
        os.kill(process.pid, how)
    else:
        os.killpg(process.pid, how)
    output, _ = process.communicate(timeout=50)
    assert gone_within(5, running)
    assert set(os.listdir("/dev/shm")) <= shared
    assert not Path(folder).exists()
    if how == signal.SIGKILL:
        assert (process.returncode, output) == (-9, ""), "no line of Ray's, no warning"
    else:  # with Ray's exit status
        assert process.returncode == 1
        assert output.startswith("Traceback") and output.endswith("\nKeyboardInterrupt\n")
        assert output.count("KeyboardInterrupt") == 1, "the workers say nothing"


def test_a_cluster_of_others_and_a_connection_of_the_programs_are_left_as_they_are(
    ray_cluster: Nodes, tmp_path: Path
) -> None:
    body = """
import signal
import ray
before = signal.getsignal(signal.SIGTERM)

def mine(item):
    return item + 1

if __name__ == "__main__":
    backend = open_backend("ray", workers=1)  # RAY_ADDRESS
    print(backend.submit(mine, 4).result(), ray.nodes()[0]["Resources"]["CPU"])
    assert signal.getsignal(signal.SIGTERM) is before
    child = os.fork()
    if child == 0:
        for use in (lambda: backend.submit(abs, 1), lambda: RayBackend(1)):
            try:
                use()
            except ForkedError:
                print("refused", flush=True)
        backend.close()
        os._exit(0)
    os.waitpid(child, 0)
    print(backend.submit(abs, -6).result())
    backend.close()
    print(ray.is_initialized())
    ray.init(address="auto", log_to_driver=False, configure_logging=False)
    backend = RayBackend(1)
    print(backend.submit(abs, -7).result())
    backend.close()
    print(ray.is_initialized(), [t.name for t in threading.enumerate() if "zephon" in t.name])
    backend = RayBackend(1)
    print(backend.submit(abs, -8).result())
    ray.shutdown()
    try:
        backend.submit(abs, -8).result()
    except Exception as error:
        print(type(error).__name__, str(error)[:17])
    ray.init(log_to_driver=False, configure_logging=False)
    backend.close()
    print(ray.is_initialized())
"""
    before = set(ray_cluster.actors())
    process = start(tmp_path, body, RAY_ADDRESS=ray_cluster.address)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    assert output.splitlines() == [
        "5 3.0",
        "refused",
        "refused",
        "6",
        "False",
        "7",
        "True []",
        "8",
        "WorkerError Ray was shut down",
        "True",
    ]
    assert ray_cluster.ray.is_initialized() and set(ray_cluster.actors()) <= before
