"""A small process that ends what is left of a local Ray cluster: run as a script, by its path.

The kernel ends the processes that the trainer started when it is killed, but Ray's node has helpers
of its own, which wait for a minute and more before they look. This waits for the trainer's end, or
for its pipe to close, and kills every process of Ray's that has a file of the session open.

    python ray_reaper.py PID

On standard input, a line each: the folder, once it is known; ``keep``: don't remove it. Only the
standard library, so that it starts at once and stays small.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Final

__all__ = ["main"]

_LOOK_SECONDS: Final = 0.5
_KILL_SECONDS: Final = 3.0
_RAYS: Final = re.compile(rb"^ray::|/ray/(dashboard|_private|core|autoscaler)/")


def main(parent: int) -> None:
    """Wait for the end of the process ``parent``, then clean up after its session."""
    told = _listen(parent).decode().splitlines()
    keep = "keep" in told
    folders = [line for line in told if line != "keep"]
    # a trainer that is killed before it could tell: the folder has its process id in its name
    place = re.escape(folders[0]) if folders else rf"/.*/session_[^/]*_{parent}"
    pattern = re.compile(rf"{place}/")
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := list(_of_ray(pattern)):
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    if folders and not keep:
        shutil.rmtree(folders[0], ignore_errors=True)


def _listen(parent: int) -> bytes:
    """What the parent says until it ends or hangs up."""
    said = b""
    while os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], _LOOK_SECONDS)
        if readable:
            data = os.read(0, 4096)
            if not data:
                break
            said += data
    return said


def _of_ray(pattern: re.Pattern[str]) -> Iterator[int]:
    """Process ids of Ray's own that have a file open whose path matches.

    Others do too, and are none of ours: the trainer, further drivers, whoever reads the logs.
    """
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ends, or is of another user
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                if not _RAYS.search(file.read(1000)):
                    continue
            for fd in os.listdir(f"/proc/{entry}/fd"):
                if pattern.match(os.readlink(f"/proc/{entry}/fd/{fd}")):
                    yield int(entry)
                    break


if __name__ == "__main__":
    main(int(sys.argv[1]))
