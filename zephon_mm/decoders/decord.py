"""decord: the class ``rgb-decord``. RGB as decord's own FFmpeg and swscale give it.

decord's frame numbers and seeks are not used: it is given runs of packets cut out by `cutting`, and
decodes each in order from its first packet to its last with one codec thread. A run that gives
fewer frames than it has is refused: ``fault_tol`` is below one frame, so none is recovered by
repeating another. Frames in between are decoded and not converted.

Why a run is read to its end before a frame of it is given: decord's own thread decodes ahead, and
an error that it meets there takes finished frames with it or not, as the race goes. Like this what
comes is a function of the bytes and of the frames asked. What it decodes ahead lies in memory as
RGB, so frames are taken as fast as they come.

Damage that FFmpeg conceals is not told by decord: concealed frames are given, the same every time.
Clips whose frames change size, and crops that FFmpeg would round, are refused.

decord brings an FFmpeg of its own, with a libvpx that breaks PyAV's VP8 and VP9 *encoders* if
decord is imported before they are used. PyAV's decoders are not touched.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import decord
import numpy as np
from av.codec.context import Flags
from numpy.typing import NDArray

from ..errors import MediaError
from ..media.info import VideoInfo
from . import pyav_stream as clip
from .base import Bytes, DecodedFrame, DecodedFrames, rgb_frame
from .cutting import Run, RunFailedError, decode_runs, is_the_machines

CODECS = frozenset("h264 hevc vp8 vp9 mpeg4 mpeg1video mpeg2video mjpeg".split())
_NO_FAULTS = "0.0000000001"  # as a share of the frames; 0 would mean that all are tolerated
_ERRORS: tuple[type[Exception], ...] = (
    decord.DECORDError, decord.DECORDLimitReachedError,
    RuntimeError, StopIteration, IndexError, AssertionError,
)  # fmt: skip


class DecordDecoder:
    """Decodes with decord on the CPU; holds no state, so one object serves all threads."""

    name = "decord"
    fingerprint = f"decord {decord.__version__}"

    def refusal(self, info: VideoInfo) -> str | None:
        """See `Decoder.refusal`."""
        if info.problem is not None:
            return info.problem
        if info.codec not in CODECS:
            return f"its codec is {info.codec}, not one of {', '.join(sorted(CODECS))}"
        if info.depth > 8:
            return f"its samples have {info.depth} bits, and decord is for 8"
        return None

    def stream(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> Iterator[DecodedFrame]:
        """See `Decoder.stream`."""
        reason = self.refusal(info)
        if reason is not None:
            raise MediaError(f"decord doesn't decode this clip: {reason}", stage="decode")
        checked = False

        def read(run: Run) -> list[NDArray[np.uint8]]:
            nonlocal checked
            if not checked and info.codec in ("h264", "hevc"):
                _check_crop(run, info)
            checked = True
            return _read(run)

        yield from decode_runs(self.name, read, data, info, frames, rgb_frame)

    def decode(self, data: Bytes, info: VideoInfo, frames: Sequence[int]) -> DecodedFrames:
        """See `Decoder.decode`."""
        found = {frame.index: frame for frame in self.stream(data, info, frames)}
        return DecodedFrames(tuple(found[index] for index in frames))


def _check_crop(run: Run, info: VideoInfo) -> None:
    """Refuse crops on the left that FFmpeg rounds to its alignment, as decord lets it do.

    decord would squeeze the wider picture to the size in the header, and not tell. PyAV does the
    same rounding unless asked not to (`pyav_stream` asks): the size of one frame shows it.
    """
    container, stream = clip.open_clip(run.data)
    with contextlib.closing(container):
        stream.codec_context.flags &= ~Flags.unaligned
        try:
            frame = next(container.decode(stream))
        except (*clip.PYAV_ERRORS, StopIteration) as error:
            raise RunFailedError(f"its first frame can't be decoded ({clip.why(error)})") from error
        if (frame.width, frame.height) != (info.stored_width, info.stored_height):
            raise MediaError("its crop on the left would be rounded", stage="decode")


def _read(run: Run) -> list[NDArray[np.uint8]]:
    """The wanted pictures of a run. Raises RunFailedError.

    The first frame is always fetched: without one, decord would fill in a missing frame by going
    back, and not tell. Where it knows of a keyframe, `seek_accurate` would seek: its border is
    crossed frame by frame. The last is fetched to know that all of the run came.
    """
    wanted = {place for place, _ in run.frames}
    found = {}
    try:
        reader = decord.VideoReader(io.BytesIO(run.data), num_threads=1, fault_tol=_NO_FAULTS)
        if len(reader) < run.num_frames:
            raise RunFailedError(f"it finds {len(reader)} frames of {run.num_frames}")
        borders = {key + side for key in reader.get_key_indices() for side in (-1, 0)}
        for place in sorted(wanted | borders | {0, run.num_frames - 1}):
            if 0 <= place < run.num_frames:
                reader.seek_accurate(place)
                picture = reader.next()
                if place in wanted:
                    found[place] = _array(picture)
    except _ERRORS as error:
        if is_the_machines(error):
            raise
        raise RunFailedError(_why(error)) from error
    return [found[place] for place, _ in run.frames]


def _array(picture: Any) -> NDArray[np.uint8]:
    """A copy of an array of decord, or of what a bridge that the user has set made of it."""
    array: NDArray[np.uint8] = (
        picture.asnumpy() if hasattr(picture, "asnumpy") else np.array(picture)
    )
    return array


def _why(error: BaseException) -> str:
    """One line, without the times and source files that decord puts before it."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^(\[[\d:]+\] \S+: )+", "", line)
