"""A virtual environment for each contestant, of pinned versions from PyPI.

An environment is made once, in a folder named by the contestant and a digest of its requirements,
and used again as long as that folder is complete. Those that need PyTorch, which is several GB,
share one, each through a ``.pth`` file. Ours and the limits run in the interpreter of the harness.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMON = ("numpy==2.4.6", "tokenizers==0.23.3", "pillow==13.0.0", "av==18.1.0")
"""What `compare.work` needs, at the versions of the harness's own environment."""
TORCH = ("torch==2.14.1",)
"""What the environment holds that those with ``torch`` share, beside `COMMON`."""


@dataclass(frozen=True)
class Contestant:
    """What a script of ``compare/`` needs.

    Attributes:
        requirements: Of pip, each pinned; empty: it runs in the harness's own environment. One of
            a package of `COMMON` takes that one's place.
        prepare: The script whose ``--prepare FOLDER WORK`` writes the data in the peer's format;
            empty: it reads them as they are.
        torch: Whether it imports PyTorch, that of the shared environment.
    """

    requirements: tuple[str, ...] = ()
    prepare: str = ""
    torch: bool = False


CONTESTANTS: dict[str, Contestant] = {
    "ours": Contestant(prepare="ours"),
    "limits": Contestant(prepare="ours"),
    "limits:aten": Contestant(prepare="ours"),
    "limits:whole": Contestant(prepare="ours"),
    "limits:tar": Contestant(),
    "limits:ffmpeg": Contestant(),
    "zephon": Contestant(("zephon[parquet]==0.2.0",), prepare="zephon"),
    "grain": Contestant(("grain==0.2.18", "array-record==0.8.6"), prepare="grain"),
    "torchdata_nodes": Contestant(("torchdata==0.11.0",), torch=True),
    "torchdata_stateful": Contestant(("torchdata==0.11.0",), torch=True),
    "datasets": Contestant(
        ("datasets==5.2.0", "torchdata==0.11.0"), prepare="datasets", torch=True
    ),
    "webdataset": Contestant(("webdataset==1.0.2",), torch=True),
    "energon": Contestant(("megatron-energon==7.4.1",), prepare="energon", torch=True),
    "streaming": Contestant(
        (
            "mosaicml-streaming==0.13.0",
            "torchvision==0.29.1",
            "numpy==2.1.3",  # it needs one below 2.2, and transformers below 5, which this suits:
            "tokenizers==0.22.2",
        ),
        prepare="streaming",
        torch=True,
    ),
    "litdata": Contestant(("litdata==0.2.76",), prepare="litdata", torch=True),
    "spdl": Contestant(("spdl==0.8.0",)),
}
"""By the name of their script in ``compare/``."""


def default_cache() -> Path:
    """Where environments and data are kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "zephon-mm-bench"


def folder_of(name: str, cache: Path) -> Path:
    """Where the contestant's environment lies, made or not; those of equal needs share one."""
    contestant = CONTESTANTS[name]
    return _folder(contestant.requirements, cache, TORCH if contestant.torch else ())


def interpreter(name: str, cache: Path, say: Callable[[str], None] = lambda line: None) -> Path:
    """The contestant's Python, its environment made if it isn't there.

    Raises:
        RuntimeError: pip failed; with the end of what it printed.
    """
    contestant = CONTESTANTS[name]
    if not contestant.requirements:
        return Path(sys.executable)
    shared = _environment(TORCH, cache, say) if contestant.torch else None
    return _environment(contestant.requirements, cache, say, shared) / "bin" / "python"


def _folder(requirements: tuple[str, ...], cache: Path, shared: tuple[str, ...] = ()) -> Path:
    what = "\n".join((sys.version, *COMMON, *requirements, *shared))
    first = requirements[0].partition("==")[0].partition("[")[0]
    return cache / "environments" / f"{first}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"


def _environment(
    requirements: tuple[str, ...],
    cache: Path,
    say: Callable[[str], None],
    shared: Path | None = None,
) -> Path:
    """The folder of an environment, complete; what ``shared`` holds need not be installed."""
    folder = _folder(requirements, cache, () if shared is None else TORCH)
    if (folder / "complete").is_file():
        return folder
    say(f"installing {', '.join(requirements)} into {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    packages = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    if shared is not None:
        (folder / packages / "shared.pth").write_text(f"{shared / packages}\n", encoding="utf-8")
    own = {requirement.partition("==")[0] for requirement in requirements}
    common = [one for one in COMMON if one.partition("==")[0] not in own]
    pinned = [*common, *requirements, *(() if shared is None else TORCH)]
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, *pinned])
    (folder / "complete").touch()
    return folder


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        raise RuntimeError(f"{' '.join(command[:6])} … failed with {done.returncode}:\n{end}")
