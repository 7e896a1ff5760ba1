"""How a process ends: Ctrl-C, exit without close, fork. Each in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

HEAD = """
import gc, os, signal, sys, threading, time
import torch
from zephon_mm.backends import *

def ours():
    return [t.name for t in threading.enumerate() if t.name.startswith("zephon_mm-")]

def open_stream(fn, count=10**9, name="threads", depth=2):
    backend = open_backend(name, workers=2)
    def steps():
        yield from map_ordered(backend, fn, range(count), window=4)
    feed = Direct(steps(), cancel=backend.close) if name == "serial" else Prefetcher(
        steps(), depth, cancel=backend.close)
    return backend, feed

def slow_after_3(item):
    if item > 3:
        time.sleep(0.2)
    return item

hanging = threading.Event()

def hang_after_3(item):
    if item > 3:
        hanging.set()
        threading.Event().wait()
    return item
"""


SERVE = """
import json
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(child)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    sys.exit(0)
output = os.open(job["output"], os.O_WRONLY | os.O_CREAT)
os.dup2(output, 1), os.dup2(output, 2)
exec(job["body"])
"""


class Runner:
    """Runs scripts in fresh processes, forked from one that has imported torch and no more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._server = subprocess.Popen(
            [sys.executable, "-u", "-c", HEAD + SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def __call__(self, body: str, *, interrupt: bool = False) -> tuple[int, str, float]:
        """Exit status, output without the line ``now``, and the seconds from then to the end.

        With ``interrupt`` the process gets a SIGINT a little after ``now``.
        """
        assert self._server.stdin is not None and self._server.stdout is not None
        self._count += 1
        output = self._folder / f"{self._count}.txt"
        print(
            json.dumps({"body": body, "output": str(output)}), file=self._server.stdin, flush=True
        )
        child = int(self._server.stdout.readline())
        try:
            while "now\n" not in (text := output.read_text() if output.exists() else ""):
                assert "Traceback" not in text, text
                time.sleep(0.01)
            begin = time.monotonic()
            if interrupt:
                time.sleep(0.1)
                os.kill(child, signal.SIGINT)
            code = int(self._server.stdout.readline())
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        return code, output.read_text().replace("now\n", "", 1), time.monotonic() - begin

    def close(self) -> None:
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.stdout.close()
        self._server.wait(10)


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    runner = Runner(tmp_path_factory.mktemp("exit"))
    yield runner
    runner.close()


@pytest.mark.parametrize("name", ["serial", "threads"])
def test_ctrl_c_in_next_ends_the_process_at_once(run: Runner, name: str) -> None:
    code, output, seconds = run(
        f"""
backend, feed = open_stream(slow_after_3, name={name!r})
for item in feed:
    if item == 3:
        print("now")
""",
        interrupt=True,
    )
    assert code == -signal.SIGINT, output
    assert "KeyboardInterrupt" in output
    assert seconds < 10


def test_ctrl_c_can_be_caught_and_the_stream_goes_on_without_a_gap(run: Runner) -> None:
    code, output, _ = run(
        """
backend, feed = open_stream(slow_after_3, count=9)
got = []
hit = 0
while len(got) < 9:
    try:
        got.append(next(feed))
        if got[-1] == 3:
            print("now")
    except KeyboardInterrupt:
        hit += 1
assert hit == 1, hit
assert got == list(range(9)), got
feed.close()
assert ours() == [], ours()
print("fine")
""",
        interrupt=True,
    )
    assert (code, output) == (0, "fine\n")


@pytest.mark.parametrize(
    ("fn", "ending"),
    [
        ("abs", "print('now')"),
        ("slow_after_3", "[next(feed) for _ in range(4)]; print('now'); sys.exit(0)"),
        ("abs", "keep = feed.__next__; holder = [feed]; holder.append(holder); print('now')"),
    ],
)
def test_exit_without_close_is_clean(run: Runner, fn: str, ending: str) -> None:
    code, output, seconds = run(f"backend, feed = open_stream({fn})\n{ending}\n")
    assert (code, output) == (0, "")
    assert seconds < 10


def test_an_uncaught_error_in_the_loop_ends_the_process(run: Runner) -> None:
    code, output, seconds = run(
        """
backend, feed = open_stream(abs)
for item in feed:
    if item == 5:
        print("now")
        raise ValueError("the loss is NaN")
"""
    )
    assert code == 1
    assert "ValueError: the loss is NaN" in output
    assert seconds < 10


def test_a_worker_that_hangs_for_ever_does_not_keep_the_process(run: Runner) -> None:
    code, output, seconds = run(
        """
backend, feed = open_stream(hang_after_3)
next(feed)
hanging.wait()
print("now")
"""
    )
    assert code == 0, output
    assert "still busy" in output
    assert seconds < 20


def test_a_forked_child_gets_a_clear_error_may_open_its_own_and_ends(run: Runner) -> None:
    code, output, _ = run(
        """
backend, feed = open_stream(abs)
ticket = backend.submit(abs, -1)
lane = map_ordered(backend, abs, range(9), window=2)
next(feed), next(lane)
child = os.fork()
if child == 0:
    for use in (lambda: next(feed), lambda: backend.submit(abs, 1), ticket.result,
                lambda: next(lane)):
        try:
            use()
        except ForkedError as error:
            print("child:", error)
    lane.close(); ticket.cancel(); feed.close(); backend.close()
    del lane, ticket, feed, backend
    gc.collect()
    other, own = open_stream(abs, count=5)
    print("child:", list(own))
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("parent:", next(feed), next(lane), ticket.result())
feed.close()
assert ours() == []
print("now")
"""
    )
    assert code == 0, output
    message = "a fork of it, where its threads do not exist: make the loader in"
    assert output.count(message) == 4
    assert "child: [0, 1, 2, 3, 4]" in output
    assert "parent: 1 1 1" in output


def test_a_trainer_that_has_not_used_torch_yet_keeps_its_cores(run: Runner) -> None:
    ask = "import torch; print('now'); print(torch.get_num_threads())"
    _, plain, _ = run(ask)
    code, output, _ = run(f"backend, feed = open_stream(abs); next(feed)\n{ask}\nfeed.close()")
    assert (code, output) == (0, plain)
    assert int(plain) >= 1
