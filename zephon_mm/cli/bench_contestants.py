"""What ``zephon-mm bench decode`` compares, each in a worker process of its own.

A process each, because libraries of this kind bring FFmpegs that disturb each other (decord
imported before PyAV breaks PyAV's libvpx), because one that crashes or hangs must not take the
others with it, and because peak memory is a process's.

A contestant is a function of a `Job` that yields ``(frame, what)`` in any order; ``what`` is a
tuple of planes, or RGB as uint8 [height, width, 3] as shown, or None.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import MissingDependencyError, ZephonError
from ..media.info import Orientation, VideoInfo

Mark = str | NDArray[np.float32]

GRID = 16
"""Blocks across and down of a picture's signature."""


@dataclass(frozen=True, slots=True)
class Job:
    """One clip to decode once. ``info`` is marked clean; ``check``: tell what came out."""

    path: str
    info: VideoInfo
    stream: int
    frames: tuple[int, ...]
    threads: int
    check: bool = False


@dataclass(frozen=True, slots=True)
class Sweep:
    """Jobs to do with so many in flight at a time, in threads of one process."""

    jobs: tuple[Job, ...]
    in_flight: int


@dataclass(frozen=True, slots=True)
class Reply:
    """How it went: seconds, bytes, and with ``check`` the mark of each frame that came out.

    A mark is the md5 of the planes, or a signature of the RGB picture.
    """

    wall: float = 0.0
    cpu: float = 0.0
    peak_bytes: int = 0
    marks: list[tuple[int, Mark]] = field(default_factory=list)
    error: str | None = None


Frames = Iterator[tuple[int, Any]]


def _ours(name: str, scan: bool = False) -> Callable[[Job, bytes], Frames]:
    from ..decoders import load_decoder
    from ..media.probe_video import probe_video

    decoder = load_decoder(name)

    def run(job: Job, data: bytes) -> Frames:
        info = probe_video(data) if scan else job.info
        for frame in decoder.stream(data, info, job.frames):
            yield frame.index, frame.planes

    return run


def _ours_rgb(name: str) -> Callable[[Job, bytes], Frames]:
    from ..decoders import load_decoder

    decoder = load_decoder(name)

    def run(job: Job, data: bytes) -> Frames:
        for frame in decoder.stream(data, job.info, job.frames):
            if not job.check:
                yield frame.index, frame.planes
                continue
            green, blue, red = frame.planes
            picture = cast(NDArray[np.uint8], np.stack((red, green, blue), axis=-1))
            yield frame.index, _as_shown(picture, frame.orientation)

    return run


def _gpu(name: str) -> Callable[[Job, bytes], Frames]:
    from .bench_gpu import on_gpu

    decode = on_gpu(name)
    return lambda job, data: decode(data, job.info, job.frames, job.check)


def _sequential() -> Callable[[Job, bytes], Frames]:
    from ..decoders import pyav_stream as clip

    def run(job: Job, data: bytes) -> Frames:
        wanted, last = set(job.frames), max(job.frames)
        container, stream = clip.open_clip(data)
        with contextlib.closing(container):
            for index, frame in enumerate(container.decode(stream)):
                if index in wanted:
                    yield index, clip.frame_planes(frame)
                if index == last:
                    return

    return run


def _torchcodec(*, mapped: bool = False) -> Callable[[Job, bytes], Frames]:
    _need("torchcodec", "zephon-mm[torchcodec]")
    from torchcodec.decoders import VideoDecoder

    def run(job: Job, data: bytes) -> Frames:
        how = {"custom_frame_mappings": frame_mappings(job.info)} if mapped else {}
        reader = VideoDecoder(
            data,
            stream_index=job.stream,
            num_ffmpeg_threads=job.threads,
            dimension_order="NHWC",
            **how,
        )
        batch = reader.get_frames_at(list(job.frames)).data.numpy()
        yield from zip(job.frames, batch, strict=True)

    return run


@lru_cache(maxsize=256)
def frame_mappings(info: VideoInfo) -> str:
    """A clip's index as torchcodec's ``custom_frame_mappings``: JSON, made once a clip."""
    pts = info.pts + info.start_pts
    durations = [*np.diff(pts).tolist(), info.last_duration]
    keys = np.isin(info.frame_packet, info.key_packet).tolist()
    frames = [
        {"pts": at, "duration": duration, "key_frame": int(key)}
        for at, duration, key in zip(pts.tolist(), durations, keys, strict=True)
    ]
    return json.dumps({"frames": frames})


def _decord() -> Callable[[Job, bytes], Frames]:
    decord = _need("decord", "decord")

    def run(job: Job, data: bytes) -> Frames:
        reader = decord.VideoReader(io.BytesIO(data), ctx=decord.cpu(0), num_threads=job.threads)
        yield from zip(job.frames, reader.get_batch(list(job.frames)).asnumpy(), strict=True)

    return run


def _ffmpeg() -> Callable[[Job, bytes], Frames]:
    program = shutil.which("ffmpeg")
    if program is None:
        raise MissingDependencyError("there is no program ffmpeg on the PATH")

    def run(job: Job, data: bytes) -> Frames:
        command = [program, "-v", "error", "-nostdin", "-threads", str(job.threads)]
        command += ["-i", job.path, "-map", f"0:{job.stream}", "-f", "null", "-"]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.decode(errors="replace").strip() or "it failed")
        for index in job.frames:
            yield index, None

    return run


def _need(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError, OSError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise MissingDependencyError(f"{line}; `pip install {package!r}`") from error


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row of the table.

    Attributes:
        load: imports what it needs and gives its function.
        gives: ``planes``, ``rgb`` or ``nothing``.
        about: one line.
        whole: it can only decode all of a clip.
    """

    load: Callable[[], Callable[[Job, bytes], Frames]]
    gives: str
    about: str
    whole: bool = False


CONTESTANTS: dict[str, Contestant] = {
    "pyav": Contestant(lambda: _ours("pyav"), "planes", "this package, index at hand"),
    "pyav+scan": Contestant(
        lambda: _ours("pyav", scan=True), "planes", "this package, the clip indexed each time"
    ),
    "torchcodec": Contestant(
        lambda: _ours("torchcodec"), "planes", "this package's torchcodec backend, index at hand"
    ),
    "pyav-sequential": Contestant(_sequential, "planes", "PyAV, a bare loop up to the last frame"),
    "torchcodec-exact": Contestant(
        _torchcodec, "rgb", "torchcodec's VideoDecoder, seek_mode exact (it scans the clip)"
    ),
    "torchcodec-mapped": Contestant(
        lambda: _torchcodec(mapped=True), "rgb", "the same with our index as its frame mappings"
    ),
    "decord": Contestant(_decord, "rgb", "decord's VideoReader.get_batch"),
    "decord-checked": Contestant(
        lambda: _ours_rgb("decord"), "rgb", "this package's decord backend, index at hand"
    ),
    "dali-cpu": Contestant(
        lambda: _ours_rgb("dali-cpu"), "rgb", "this package's DALI backend: VP8, VP9, MJPEG"
    ),
    "nvdec": Contestant(
        lambda: _gpu("nvdec"), "planes", "this package's NVDEC by torchcodec, on the GPU"
    ),
    "dali-mixed": Contestant(
        lambda: _gpu("dali-gpu"), "rgb", "this package's DALI backend, on the GPU"
    ),
    "ffmpeg": Contestant(_ffmpeg, "nothing", "the program, to null: the limit", whole=True),
}


def serve(name: str, connection: Connection) -> None:
    """A worker: sends None or why the contestant is missing, then answers jobs until None."""
    try:
        run = CONTESTANTS[name].load()
    except ZephonError as error:
        connection.send(str(error))
        return
    connection.send(None)
    infos: dict[str, VideoInfo] = {}  # one object a clip, for what is kept by clip
    while (asked := connection.recv()) is not None:
        given: tuple[Job, ...] = asked.jobs if isinstance(asked, Sweep) else (asked,)
        jobs = [replace(job, info=infos.setdefault(job.path, job.info)) for job in given]
        data = {job.path: Path(job.path).read_bytes() for job in jobs}
        try:
            if isinstance(asked, Sweep):
                connection.send(_measure_sweep(run, jobs, data, asked.in_flight))
            else:
                connection.send(_measure(run, jobs[0], data[asked.path]))
        except Exception as error:  # whatever a library raises is a cell of the table
            line = (str(error).strip().splitlines() or [""])[0]
            connection.send(Reply(error=f"{type(error).__name__}: {line}"))


def _measure(run: Callable[[Job, bytes], Frames], job: Job, data: bytes) -> Reply:
    marks: list[tuple[int, Mark]] = []
    _reset_peak()
    cpu, start = _cpu_seconds(), time.perf_counter()
    for index, what in run(job, data):
        if job.check and what is not None:
            marks.append((index, mark(what)))
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
    return Reply(wall, cpu, _peak_bytes(), marks)


def _measure_sweep(
    run: Callable[[Job, bytes], Frames],
    jobs: Sequence[Job],
    data: dict[str, bytes],
    in_flight: int,
) -> Reply:
    def drain(job: Job) -> None:
        for _ in run(job, data[job.path]):
            pass

    _reset_peak()
    cpu, start = _cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(in_flight) as pool:
        for _ in pool.map(drain, jobs):
            pass
    wall, cpu = time.perf_counter() - start, _cpu_seconds() - cpu
    return Reply(wall, cpu, _peak_bytes())


def mark(what: Any) -> Mark:
    """Planes to their md5, an RGB picture to its signature."""
    if isinstance(what, tuple):
        digest = hashlib.md5(usedforsecurity=False)
        for plane in what:
            digest.update(np.ascontiguousarray(plane).data)
        return digest.hexdigest()
    return signature(what)


def signature(picture: NDArray[np.uint8], turn: Orientation | None = None) -> NDArray[np.float32]:
    """Mean of each of 16 × 16 blocks of a picture, all channels together, 0 to 255."""
    if turn is not None:
        picture = _as_shown(picture, turn)
    grey = picture.mean(axis=2, dtype=np.float32)
    rows = np.linspace(0, grey.shape[0], GRID, endpoint=False).astype(int)
    columns = np.linspace(0, grey.shape[1], GRID, endpoint=False).astype(int)
    sums = np.add.reduceat(np.add.reduceat(grey, rows, 0), columns, 1)
    counts = np.outer(np.diff(rows, append=grey.shape[0]), np.diff(columns, append=grey.shape[1]))
    result: NDArray[np.float32] = (sums / np.maximum(counts, 1)).astype(np.float32)
    return result


def _as_shown(picture: NDArray[np.uint8], turn: Orientation) -> NDArray[np.uint8]:
    picture = picture.swapaxes(0, 1) if turn.transpose else picture
    return picture[:: -1 if turn.mirror_y else 1, :: -1 if turn.mirror_x else 1]


@dataclass(frozen=True, slots=True)
class Reference:
    """Every frame of a clip by a bare sequential PyAV decode: what is right."""

    md5: list[str]
    signatures: NDArray[np.float32]

    def wrong(self, marks: Sequence[tuple[int, Mark]]) -> int:
        """How many marks are of another frame.

        Planes are compared bit by bit. RGB is another frame's if some other frame of the clip is
        nearer to it, by more than one code in the mean, than the one asked for.
        """
        count = 0
        for index, found in marks:
            if isinstance(found, str):
                count += found != self.md5[index]
                continue
            off = np.abs(self.signatures - found).mean(axis=(1, 2))
            count += bool(off[index] > off.min() + 1)
        return count


def reference(data: bytes, info: VideoInfo) -> tuple[Reference, int]:
    """Decode all of a clip in order; the stream's number too. Raises as PyAV, and MediaError."""
    from ..decoders import pyav_stream as clip

    digests: list[str] = []
    pictures: list[NDArray[np.float32]] = []
    container, stream = clip.open_clip(data)
    with contextlib.closing(container):
        for frame in container.decode(stream):
            digests.append(str(mark(clip.frame_planes(frame))))
            rgb = cast(NDArray[np.uint8], frame.to_ndarray(format="rgb24"))
            pictures.append(signature(rgb, info.orientation))
        return Reference(digests, np.stack(pictures)), stream.index


def _cpu_seconds() -> float:
    """CPU time of this process, its threads and the programs it ran."""
    child = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + child.ru_utime + child.ru_stime


def _reset_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_bytes() -> int:
    """Peak memory since `_reset_peak`, of this process or of a program it ran, if that is more."""
    child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return max(int(line.split()[1]) * 1024, child)
    return max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, child)
