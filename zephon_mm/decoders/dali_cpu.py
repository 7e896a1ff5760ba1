"""DALI on the CPU: the class ``rgb-dali-cpu``. VP8, VP9 and MJPEG, RGB by DALI's own conversion.

DALI is given runs of packets cut out by `cutting` and asked for frames by their place in the run
(``frames=``; ``pad_mode="none"``, since its default fills what isn't there with black). The last
frame of a run is always asked for, so a run that isn't whole is an error. A pipeline is built for
each run and let go: one that met an error can't be used again, and nothing is kept. One
thread for each pipeline, and none outlives it.

Damage that FFmpeg conceals is not told by DALI. Importing DALI is slow, so only the modules of its
decoders do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia import dali
from nvidia.dali import fn, types

from ..errors import MediaError
from ..media.info import VideoInfo
from .base import Bytes, DecodedFrame, DecodedFrames, rgb_frame
from .cutting import Run, RunFailedError, decode_runs, is_the_machines

CODECS = frozenset(("mjpeg", "vp8", "vp9"))


class DaliCpuDecoder:
    """Decodes with DALI on the CPU; holds no state, so one object serves all threads."""

    name = "dali-cpu"
    fingerprint = f"nvidia-dali {dali.__version__}, CPU"

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`."""
        if info.problem is not None:
            return info.problem
        if info.codec not in CODECS:
            return f"its codec is {info.codec}; on the CPU, DALI has {', '.join(sorted(CODECS))}"
        return None

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """See `Decoder.stream`."""
        reason = self.refusal(info)
        if reason is not None:
            raise MediaError(f"dali-cpu doesn't decode this clip: {reason}", stage="decode")
        yield from decode_runs(self.name, _read, data, info, frames, rgb_frame)

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """See `Decoder.decode`."""
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))


def _read(run: Run) -> list[NDArray[np.uint8]]:
    """The wanted pictures of a run. Raises RunFailedError."""
    pictures: NDArray[np.uint8] = np.array(decoded(run, "cpu", None).at(0))
    return list(pictures[: len(run.frames)])


def decoded(run: Run, device: str, device_id: int | None) -> Any:
    """DALI's list of one sequence: the run's wanted pictures, and its last, [n, H, W, 3] of uint8.

    Args:
        run: what is decoded.
        device: ``cpu``, or ``mixed`` for a GPU.
        device_id: of the GPU; None: DALI asks for none.

    Raises:
        RunFailedError: DALI failed, or gave another number of pictures.
        RuntimeError: this machine lacks memory, or a part of its driver.
    """
    places = [place for place, _ in run.frames]
    if places[-1] != run.num_frames - 1:
        places.append(run.num_frames - 1)
    pipeline = dali.Pipeline(
        batch_size=1, num_threads=1, device_id=device_id, prefetch_queue_depth=1, exec_dynamic=True
    )
    with pipeline:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1, device="cpu")
        pipeline.set_outputs(
            fn.decoders.video(encoded, frames=places, pad_mode="none", device=device)
        )
    try:
        pipeline.build()
        pipeline.feed_input("encoded", [np.frombuffer(run.data, np.uint8)])
        (output,) = pipeline.run()
    except RuntimeError as error:
        if is_the_machines(error):
            raise
        raise RunFailedError(_why(error)) from error
    (count, *_) = output.shape()[0]
    if count != len(places):
        raise RunFailedError(f"it gave {count} frames of {len(places)}")
    return output


def _why(error: BaseException) -> str:
    """The line that says what happened, out of a report of many."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    at = lines.index("encountered:") + 1 if "encountered:" in lines else 0
    return lines[at] if at < len(lines) else type(error).__name__
