"""How programs with worker processes end, start and live side by side: nothing of ours is left.

Each in an interpreter of its own, without torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.backends.test_processes import alive

ROOT = Path(__file__).resolve().parents[3]

HEAD = """
import os, sys, time
from tests.unit.backends import workers
from zephon_mm.backends import *

def pids(backend, count=2):
    found = set()
    while len(found) < count:
        found |= {t.result()[0] for t in [backend.submit(workers.who, None) for _ in range(8)]}
    return found
"""


def start(tmp_path: Path, body: str, name: str = "script.py") -> subprocess.Popen[str]:
    """A script in a process group of its own, as a shell starts it."""
    script = tmp_path / name
    script.write_text(body)
    return subprocess.Popen(
        [sys.executable, "-u", str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        process_group=0,
    )


def run(tmp_path: Path, body: str) -> tuple[int, str]:
    process = start(tmp_path, body)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output


def gone_within(seconds: float, pids: set[int]) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


BUSY = """
backend = ProcessesBackend(3)
print(*pids(backend, 3))
tickets = [backend.submit(workers.nap, 60) for _ in range(2)]
big = [backend.submit(workers.filled, (1, 1 << 20)).result() for _ in range(3)]
print("now")
tickets[0].result()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_whatever_ends_the_program_ends_its_workers(tmp_path: Path, how: signal.Signals) -> None:
    """Z03, and Ctrl-C, which the terminal sends to the whole group: idle and busy workers end."""
    shared = set(os.listdir("/dev/shm"))
    for _ in range(2 if how == signal.SIGKILL else 1):  # the next start meets nothing of the last
        process = start(tmp_path, HEAD + BUSY)
        assert process.stdout is not None
        running = set(map(int, process.stdout.readline().split()))
        assert process.stdout.readline() == "now\n"
        if how == signal.SIGKILL:
            os.kill(process.pid, how)
        else:
            os.killpg(process.pid, how)
        output, _ = process.communicate(timeout=20)
        assert process.returncode == -how, output
        assert gone_within(5, running)
        assert set(os.listdir("/dev/shm")) <= shared
        if how == signal.SIGINT:
            assert output.count("KeyboardInterrupt") == 1, "the workers say nothing"


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    code, output = run(
        tmp_path,
        HEAD + "print('once')\nprint(len(pids(ProcessesBackend(2))))\n",
    )
    assert (code, output) == (0, "once\n2\n")


OWN = """
def mine(item):
    return item + 1
"""


def test_a_function_of_the_script_needs_the_guard_and_the_error_says_so(tmp_path: Path) -> None:
    use = "backend = ProcessesBackend(1); print(backend.submit(mine, 4).result())\n"
    code, output = run(tmp_path, HEAD + OWN + use)
    assert code == 1
    assert 'Put what starts the loader under `if __name__ == "__main__":`' in output
    assert "or the function in a module" in output
    guarded = f"if __name__ == '__main__':\n    {use}"
    assert run(tmp_path, HEAD + OWN + guarded) == (0, "5\n")
    code, output = run(tmp_path, HEAD + OWN + guarded + "sys.exit(4)\n")
    assert code == 1
    assert "WorkerError: the script that started the loader ended (4) when a worker" in output


def test_modules_beside_the_script_and_paths_added_by_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "added").mkdir()
    (tmp_path / "beside.py").write_text("def f(item):\n    return item + 1\n")
    (tmp_path / "added/far.py").write_text("import beside\ndef f(i):\n    return beside.f(i) * 2\n")
    body = f"""
os.chdir({str(tmp_path)!r}); sys.path.append("added")
import far
backend = ProcessesBackend(1)
os.chdir("/"); sys.path.remove("added")  # a later worker starts as the first did
os.kill(pids(backend, 1).pop(), 9)
print(backend.submit(far.f, 4).result())
"""
    code, output = run(tmp_path, HEAD + body)
    assert code == 0, output
    assert output.endswith("10\n")


def test_a_fork_gets_an_error_and_may_start_its_own(tmp_path: Path) -> None:
    """V01, Z08: nothing made before a fork is used after it."""
    body = """
import threading
backend = ProcessesBackend(2)
ours = pids(backend)
ticket = backend.submit(abs, -1)
threading.Thread(target=time.sleep, args=(1,)).start()
child = os.fork()
if child == 0:
    for use in (lambda: backend.submit(abs, 1), ticket.result):
        try:
            use()
        except ForkedError:
            print("refused")
    backend.close()
    own = ProcessesBackend(1)
    print(own.submit(abs, -7).result())
    own.close()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert pids(backend) == ours, "the child's clean-up ended nothing here"
print(ticket.result())
"""
    code, output = run(tmp_path, HEAD + body)
    assert (code, output) == (0, "refused\nrefused\n7\n1\n")


def test_many_programs_at_once(tmp_path: Path) -> None:
    """Z04: no names to collide in."""
    body = """
seed = int(sys.argv[0].rpartition("-")[2].removesuffix(".py"))
backend = ProcessesBackend(1)
tickets = [(backend.submit(workers.filled, (seed + i, 200_000)), i) for i in range(20)]
print(all(t.result()[-1] == (seed + i) % 251 for t, i in tickets))
"""
    several = [start(tmp_path, HEAD + body, f"script-{10 * i}.py") for i in range(4)]
    assert [p.communicate(timeout=100)[0] for p in several] == ["True\n"] * 4
