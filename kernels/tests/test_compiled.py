"""Compiled once: kept on disk, safe between processes and threads, and without a disk."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numba import types
from zephon_mm_kernels.compiled import Compiled

KERNELS = Path(__file__).parents[1]

MODULE = """
import sys
from numba import types
from zephon_mm_kernels.compiled import Compiled

def double(x):
    return x + x

DOUBLE = Compiled(double, (types.int64(types.int64), types.float64(types.float64)))
assert DOUBLE(21) == 42 and DOUBLE(1.25) == 2.5
stats = DOUBLE._ready.stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def run(script: Path, cache: Path) -> subprocess.Popen[str]:
    env = {"PATH": "/usr/bin", "PYTHONPATH": str(KERNELS), "NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        [sys.executable, str(script)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    script = tmp_path / "doubling.py"
    script.write_text(MODULE)
    together = [run(script, tmp_path / "cache") for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in together]
    assert all(process.returncode == 0 for process in together), answers
    assert sorted(out.strip() for out, _ in answers) == ["0 2", "2 0"]


def test_without_a_place_on_disk_it_says_so_and_works(caplog: pytest.LogCaptureFixture) -> None:
    space: dict[str, object] = {}
    exec("def triple(x):\n    return 3 * x", space)  # a function without a file
    triple = Compiled(space["triple"], (types.int64(types.int64),))  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING, "zephon_mm_kernels"):
        assert triple(14) == 42
    assert "NUMBA_CACHE_DIR" in caplog.text


def test_other_kinds_of_arguments_are_refused() -> None:
    def first(x):  # type: ignore[no-untyped-def]
        return x[0]

    function = Compiled(first, (types.int64(types.Array(types.int64, 1, "C")),))
    assert function(np.arange(3)) == 0
    with pytest.raises(TypeError, match="No matching definition"):
        function(np.zeros(3))
