"""The wheel, installed elsewhere: what it holds, what importing it loads, what its script says."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

HEAVY = ("av", "decord", "PIL", "pyarrow", "ray", "torch", "torchvision", "transformers")
"""Libraries that `import zephon_mm` must not load."""


def run(*command: str | Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that finds the wheel's files before any other install of the package."""
    environment = {**os.environ, "PYTHONPATH": str(site), "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [str(part) for part in command],
        cwd=site,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip")
    built = run(
        *pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT, site=folder
    )
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pip = (sys.executable, "-m", "pip")
    installed = run(
        *pip, "install", "-q", "--no-deps", "--no-index", "--target", folder, wheel, site=folder
    )
    assert installed.returncode == 0, installed.stderr
    return folder


def test_wheel_holds_both_packages_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"zephon_mm", "zephon_mm_kernels"}
    assert "zephon_mm/py.typed" in names
    in_tree = {
        str(path.relative_to(base))
        for base, package in ((ROOT, "zephon_mm"), (ROOT / "kernels", "zephon_mm_kernels"))
        for path in (base / package).rglob("*.py")
    }
    assert {name for name in names if name.endswith(".py")} == in_tree


def test_import_loads_nothing_heavy(site: Path) -> None:
    code = (
        "import sys, zephon_mm, zephon_mm_kernels\n"
        "print(zephon_mm.__file__, zephon_mm_kernels.__file__, sep='\\n')\n"
        "print(*sys.modules, sep='\\n')"
    )
    result = run(sys.executable, "-c", code, site=site)
    assert result.returncode == 0, result.stderr
    package, kernels, *modules = result.stdout.split()
    assert Path(package).is_relative_to(site) and Path(kernels).is_relative_to(site)
    assert not sorted(set(HEAVY) & set(modules))


def test_every_public_name_is_there(site: Path) -> None:
    code = (
        "import zephon_mm\n"
        "for name in zephon_mm.__all__: getattr(zephon_mm, name)\n"
        "print(*zephon_mm.__all__)"
    )
    result = run(sys.executable, "-c", code, site=site)
    assert result.returncode == 0, result.stderr
    expected = {"DataConfig", "ExecutionConfig", "Loader", "Source", "VideoSampling"}
    assert expected <= set(result.stdout.split())


def test_script_teaches(site: Path) -> None:
    script = site / "bin" / "zephon-mm"
    result = run(script, "--help", site=site)
    assert result.returncode == 0, result.stderr
    for command in ("index", "digest", "measure", "demo"):
        assert command in result.stdout
        shown = run(script, command, "--help", site=site)
        assert shown.returncode == 0, shown.stderr
        assert f"zephon-mm {command} " in shown.stdout.split("Options")[0]  # an example


def test_errors_are_one_line_without_a_traceback(site: Path, tmp_path: Path) -> None:
    script = site / "bin" / "zephon-mm"
    config = tmp_path / "broken.yaml"
    config.write_text("model: qwen3_vl\nlane: 3\n")
    result = run(script, "digest", config, site=site)
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and "did you mean 'lanes'?" in result.stderr
    debugged = run(script, "--debug", "digest", config, site=site)
    assert debugged.returncode == 1 and "Traceback" in debugged.stderr
