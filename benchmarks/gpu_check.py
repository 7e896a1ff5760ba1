"""Check and measure the GPU path on an NVIDIA GPU: ``python benchmarks/gpu_check.py``.

Needs torch with CUDA, triton and numpy, this repository, and no network. Everything else is looked
for and, where it isn't there, its part says so. Writes one JSON file (``--out``) and prints it:

- device, driver, and what its NVDEC says that it decodes;
- every Triton kernel against the slow reference, byte for byte;
- NVDEC's planes of the carried clips (``data/gpu_clips``) against digests of PyAV's, by torchcodec
  and by PyNvVideoCodec, whichever is installed;
- kernels: µs a frame, GB/s, and the share of the bandwidth that a copy reaches in the same run;
- NVDEC: frames/s, alone and with several clips at a time;
- the loader: digests of its batches with pixels on the GPU against the CPU's, and frames/s of both.

A part is ``{"ok": true, …}``, ``{"ok": false, "error": …}`` or ``{"not_run": reason}``. The exit
status is 1 if a part failed. Parts that would start after ``--minutes`` are not run. Without a GPU
every part is "not run: no GPU"; ``--interpret`` then runs the kernels' checks, and only those, in
Triton's interpreter.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLIPS = Path(__file__).with_name("data") / "gpu_clips"
Result = dict[str, Any]
NO_GPU = {"not_run": "no GPU"}


class MissingError(Exception):
    """A library is not there, or doesn't load; the message says which and why."""


def main() -> int:
    """Run all parts in order and write the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"), help="the report")
    parser.add_argument("--minutes", type=float, default=5.0, help="no part starts after this")
    parser.add_argument(
        "--interpret", action="store_true", help="check the kernels in Triton's interpreter"
    )
    options = parser.parse_args()
    if options.interpret:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, below
    sys.path[:0] = [str(ROOT), str(ROOT / "kernels"), str(Path(__file__).parent)]
    torch = importlib.import_module("torch")
    gpu = torch.cuda.is_available() and not options.interpret
    report: Result = {"versions": versions()}
    end = time.monotonic() + 60 * options.minutes
    for name, part in PARTS.items():
        if not gpu and not (options.interpret and part is check_kernels):
            report[name] = NO_GPU
        elif time.monotonic() > end:
            report[name] = {"not_run": f"{options.minutes} minutes were over"}
        else:
            report[name] = guarded(part, "cuda" if gpu else "cpu")
        sys.stderr.write(f"{name}: {verdict(report[name])}\n")
    text = json.dumps(report, indent=1)
    options.out.write_text(text + "\n")
    print(text)
    return int(any(part.get("ok") is False for part in report.values()))


def guarded(part: Callable[[str], Result], device: str) -> Result:
    """A part's result and its seconds; an exception is its error, a missing library a reason."""
    start = time.monotonic()
    try:
        result = part(device)
    except MissingError as error:
        result = {"not_run": str(error)}
    except ModuleNotFoundError as error:
        result = {"not_run": f"{error.name} is not installed"}
    except Exception as error:
        result = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    return {**result, "seconds": round(time.monotonic() - start, 2)}


def verdict(result: Result) -> str:
    """One line for the terminal."""
    if "not_run" in result:
        return f"not run: {result['not_run']}"
    return "ok" if result.get("ok", True) else f"FAILED: {result.get('error', 'see the report')}"


def library(name: str) -> Any:
    """Import an optional library, whatever it raises where it can't be used."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingError(f"{error.name} is not installed") from error
    except Exception as error:  # torchcodec without FFmpeg, PyNvVideoCodec without a driver
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingError(f"{name} doesn't load here: {reason}") from error


def versions() -> dict[str, str]:
    """Versions of everything that matters; missing ones are left out."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "triton", "numpy", "torchcodec", "PyNvVideoCodec", "av"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def describe_device(device: str) -> Result:
    """Name, memory, capability, driver."""
    import torch

    facts = torch.cuda.get_device_properties(0)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "ok": True,
        "name": facts.name,
        "memory_gib": round(facts.total_memory / 2**30, 1),
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "cuda": torch.version.cuda,
        "driver": driver.read_text().splitlines()[0] if driver.exists() else "unknown",
    }


def nvdec_capabilities(device: str) -> Result:
    """What the driver says that NVDEC decodes, by codec, chroma and depth."""
    import torch

    torch.zeros(1, device=device)  # the library asks for a current context
    try:
        from zephon_mm.decoders.nvdec_driver import CHROMA, CODECS, LIBRARY, Caps

        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return {"not_run": f"the driver brings no libnvcuvid: {error}"}
    names = {(1, 1): "4:2:0", (1, 0): "4:2:2", (0, 0): "4:4:4"}
    found: Result = {}
    for codec, number in CODECS.items():
        for chroma, kind in ((names[sub], kind) for sub, kind in CHROMA.items()):
            for depth in (8, 10, 12):
                caps = Caps(codec=number, chroma=kind, depth_minus_8=depth - 8)
                status = library.cuvidGetDecoderCaps(ctypes.byref(caps))
                if status:
                    return {"ok": False, "error": f"cuvidGetDecoderCaps gave {status}"}
                if caps.supported:
                    most = f"{caps.max_width}x{caps.max_height}"
                    found[f"{codec} {chroma} {depth} bits"] = f"{caps.engines} engines, {most}"
    return {"ok": True, "decodes": found}


def check_kernels(device: str) -> Result:
    """Every kernel against the reference, byte for byte."""
    import numpy as np
    import torch
    from gpu_cases import CASES, surfaces_of
    from zephon_mm_kernels import normalise, reference
    from zephon_mm_kernels import triton as kernels

    cases = CASES if device == "cuda" else CASES[:2]
    wrong = []
    for number, case in enumerate(cases):
        size, out, depth, matrix, full, kind, turn, (p, t, m) = case
        frames = list(range(2 if device == "cuda" else 1))
        planes, surfaces, sub, shift = surfaces_of(size, depth, kind, device, len(frames), number)
        pictures = np.stack([
            reference.frame_rgb(frame, sub, depth, matrix, full, turn, out) for frame in planes
        ])  # fmt: skip
        source = kernels.Source(sub, depth, shift, matrix, full, turn)
        rows = -(-len(frames) // t) * out[0] * out[1] // p**2
        patches = torch.full((rows, 3 * t * p * p), 77, dtype=torch.uint8, device=device)
        kernels.write_frames(surfaces, source, out, patches, frames, p, t, m)
        whole = torch.zeros((len(frames), 3, *out), dtype=torch.uint8, device=device)
        kernels.write_pictures(surfaces, source, whole, frames)
        if len(frames) % t:  # the second time of a lone frame's patches stays as it was
            pictures = np.concatenate([pictures, np.full_like(pictures, 77)])
        same = np.array_equal(patches.cpu().numpy(), reference.patchify(pictures, p, t, m))
        pictures = pictures[: len(frames)]
        if not same or not np.array_equal(whole.cpu().numpy(), pictures.transpose(0, 3, 1, 2)):
            wrong.append(case)
    codes = torch.arange(6 * 768, device=device).to(torch.uint8).reshape(6, 768)
    table = torch.from_numpy(normalise.table((0.48, 0.46, 0.41), (0.27, 0.26, 0.28)))
    for dtype in (torch.float32, torch.bfloat16):
        entries = table.to(dtype).to(device)
        got = torch.empty(codes.shape, dtype=dtype, device=device)
        kernels.normalise(codes, entries, got)
        cut = codes.reshape(6, 3, 256).long()
        want = torch.stack([entries[c][cut[:, c]] for c in range(3)], dim=1).reshape(6, 768)
        if not torch.equal(got, want):
            wrong.append(("normalise", str(dtype)))
    return {"ok": not wrong, "cases": len(cases) + 2, "wrong": wrong}


def digests(planes: list[Any]) -> tuple[str, str]:
    """MD5 of planes tightly packed: as they are, and shifted down from the top of 16 bits."""
    import numpy as np

    plain = hashlib.md5(usedforsecurity=False)
    shifted = hashlib.md5(usedforsecurity=False)
    for plane in planes:
        plain.update(np.ascontiguousarray(plane).tobytes())
        shifted.update(np.ascontiguousarray(plane >> 6 if plane.itemsize == 2 else plane).tobytes())
    return plain.hexdigest(), shifted.hexdigest()


def compare_planes(
    decode: Callable[[Path], Iterator[list[Any]]], only: Collection[str] = ()
) -> Result:
    """Planes of every carried clip, or of some, against their recorded digests."""
    known = json.loads((CLIPS / "planes.json").read_text())
    results: Result = {}
    for name, facts in known.items():
        if only and name not in only:
            continue
        try:
            found = [digests(planes) for planes in decode(CLIPS / name)]
        except Exception as error:
            results[name] = {"error": f"{type(error).__name__}: {error}"}
            continue
        want = facts["md5"]
        equal = [w in pair for w, pair in zip(want, found, strict=False)]
        at_top = bool(found) and want[0] == found[0][1] != found[0][0]
        results[name] = {
            "equal": len(found) == len(want) and all(equal),
            "frames": len(found),
            "expected": len(want),
            "first_wrong": equal.index(False) if False in equal else None,
            "samples_at_the_top_of_16_bits": at_top,
        }
    return {"ok": all(r.get("equal", False) for r in results.values()), "clips": results}


def by_torchcodec(path: Path, device: str = "cuda") -> Iterator[Any]:
    """Raw frames of torchcodec's packet decoder."""
    demuxer = library("torchcodec.decoders").Demuxer(path.read_bytes())
    decoder = demuxer.streams[0].make_decoder(device=device)
    for packet in demuxer:
        yield from decoder.decode(packet)
    yield from decoder.drain()


def check_torchcodec(device: str) -> Result:
    """NVDEC by torchcodec's `RawFrame`."""
    library("torchcodec.decoders")

    def planes(path: Path) -> Iterator[list[Any]]:
        for frame in by_torchcodec(path, device):
            yield [plane.cpu().numpy() for plane in frame.planes[:3]]

    return compare_planes(planes)


def check_pynvvideocodec(device: str) -> Result:
    """NVDEC by PyNvVideoCodec, native surfaces (NV12, P010 or P016)."""
    import numpy as np
    import torch

    nvc = library("PyNvVideoCodec")

    def planes(path: Path) -> Iterator[list[Any]]:
        demuxer = nvc.CreateDemuxer(filename=str(path))
        decoder = nvc.CreateDecoder(
            gpuid=0, codec=demuxer.GetNvCodecId(), cudacontext=0, cudastream=0, usedevicememory=True
        )
        for packet in demuxer:
            for frame in decoder.Decode(packet):
                whole = torch.from_dlpack(frame).cpu().numpy()
                whole = whole if whole.itemsize == 1 else whole.view(np.uint16)
                rows = whole.reshape(-1, whole.shape[-1])
                height = len(rows) * 2 // 3
                pairs = rows[height:]
                yield [rows[:height], pairs[:, ::2], pairs[:, 1::2]]

    return compare_planes(planes)


def measure_kernels(device: str) -> Result:
    """µs a frame of 16 NV12 frames, and the least bytes that must move, over the time."""
    import torch
    from gpu_cases import STRAIGHT, surfaces_of
    from zephon_mm_kernels import triton as kernels

    block = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    other = torch.empty_like(block)
    copy = 2 * block.numel() / seconds_of(lambda: other.copy_(block))
    rows: Result = {"copy_gb_per_s": round(copy / 1e9)}
    sizes = (((720, 1280), (252, 448), 14), ((1080, 1920), (420, 756), 14),
             ((360, 640), (352, 640), 16))  # fmt: skip
    for size, out, p in sizes:
        _, surfaces, sub, shift = surfaces_of(size, 8, "pairs", device, 16, 0)
        source = kernels.Source(sub, 8, shift, "709", False, STRAIGHT)
        patches = torch.empty((8 * out[0] * out[1] // p**2, 6 * p * p), dtype=torch.uint8)
        patches = patches.to(device)
        write = partial(kernels.write_frames, surfaces, source, out, patches, range(16), p, 2, 2)
        spent = seconds_of(write)
        least = 16 * (size[0] * size[1] * 3 // 2 + 3 * out[0] * out[1])
        table = torch.zeros((3, 256), dtype=torch.bfloat16, device=device)
        numbers = torch.empty(patches.shape, dtype=torch.bfloat16, device=device)
        looked_up = seconds_of(partial(kernels.normalise, patches, table, numbers))
        rows[f"{size[0]}p to {out[0]}x{out[1]}"] = {
            "us_a_frame": round(spent / 16 * 1e6, 2),
            "gb_per_s": round(least / spent / 1e9),
            "share_of_copy": round(least / spent / copy, 3),
            "times_the_bound": round(spent / (least / copy), 1),
            "normalise_us_a_frame": round(looked_up / 16 * 1e6, 2),
            "normalise_share_of_copy": round(3 * patches.numel() / looked_up / copy, 3),
        }
    return {"ok": True, **rows}


def seconds_of(run: Callable[[], Any]) -> float:
    """Device seconds of a call: the middle of seven groups of ten, after a warm-up, by events."""
    import torch

    for _ in range(3):
        run()
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e4)
    return sorted(times)[3]


def measure_nvdec(device: str) -> Result:
    """Frames/s of the 720p clip by torchcodec, with 1 to 8 clips at a time."""
    import torch

    path = CLIPS / "h264_8bit_720p.mp4"
    rates: Result = {}

    def whole(_: int) -> int:
        return sum(1 for _ in by_torchcodec(path, device))

    whole(0)
    for clips in (1, 2, 4, 8):
        start = time.perf_counter()
        with ThreadPoolExecutor(clips) as pool:
            frames = sum(pool.map(whole, range(2 * clips)))
        torch.cuda.synchronize()
        rates[f"{clips} at a time"] = round(frames / (time.perf_counter() - start))
    return {"ok": True, "frames_per_s": rates}


def check_loader(device: str) -> Result:
    """The loader's batches on the GPU against the CPU's, and frames/s of NVDEC in the loader."""
    import gpu_loader

    for name in ("av", "PIL", "pyarrow", "tokenizers", "torchcodec.decoders", "zephon_mm"):
        library(name)
    with tempfile.TemporaryDirectory() as folder:
        return gpu_loader.check(device, CLIPS, Path(folder))


PARTS: dict[str, Callable[[str], Result]] = {
    "device": describe_device,
    "nvdec_capabilities": nvdec_capabilities,
    "kernels": check_kernels,
    "planes_torchcodec": check_torchcodec,
    "planes_pynvvideocodec": check_pynvvideocodec,
    "kernel_speed": measure_kernels,
    "nvdec_speed": measure_nvdec,
    "loader": check_loader,
}


if __name__ == "__main__":
    sys.exit(main())
