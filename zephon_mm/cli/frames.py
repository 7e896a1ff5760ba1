"""``zephon-mm frames``: the frames of a clip as a run would decode them, one JSON line each.

Frames leave the decoder in its own order; lines are printed in the order asked for, each as soon
as it can be. Memory is that of a few frames, the lines that wait and the sheet's thumbnails.
"""

from __future__ import annotations

import io
import json
import math
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..config import VideoSampling
from ..decoders import REFERENCE
from ..errors import ConfigError, MediaError, StorageError

if TYPE_CHECKING:
    from PIL import Image

    from ..decoders.base import DecodedFrame
    from ..media.info import VideoInfo


THUMB = 160
LABEL = 18
GAP = 4
SHEET_COLUMNS = 6
SHEET_FRAMES = 60


def frames(
    file: Annotated[Path, typer.Argument(help="A clip.", show_default=False)],
    decoder: Annotated[
        str,
        typer.Option(
            help="The video library: pyav; torchcodec (the same planes; the clip is first "
            "verified with pyav); decord or dali-cpu (RGB of their own; DALI: VP8, VP9, MJPEG)."
        ),
    ] = REFERENCE,
    indices: Annotated[
        str | None, typer.Option(help="These frames, in this order: 0,5,7. Repeats are kept.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every frame (the default).")] = False,
    fps: Annotated[
        float | None, typer.Option(help="So many frames a second, as `VideoSampling(fps=…)`.")
    ] = None,
    uniform: Annotated[
        int | None, typer.Option(min=1, help="So many frames, spread over the clip.")
    ] = None,
    hashed: Annotated[bool, typer.Option("--hash/--no-hash", help="Give each frame's md5.")] = True,
    png: Annotated[
        Path | None,
        typer.Option(
            help="Write the frames as shown to this folder, and contact_sheet.png of at most "
            f"{SHEET_FRAMES} of them."
        ),
    ] = None,
) -> None:
    """Print a JSON line for each frame: which frames a clip has, when, and their exact pixels.

        zephon-mm frames clip.mp4 --uniform 8

        zephon-mm frames clip.mp4 --indices 0,5,7 --png out

    Frames are numbered in the order shown, without those that an edit list cuts. `pts` is in the
    file's ticks; `pts_seconds` counts from the first shown frame, as windows and sampling do.
    `size` is [width, height] as stored: not turned, not resized. `md5` is over the planes as the
    codec gives them (Y, U, V or G, B, R, one after the other, rows tightly packed), so it is the
    same on every machine and for every exact decoder, and equals
    `ffmpeg -noautorotate -i clip.mp4 -fps_mode passthrough -f framemd5 -` for planar formats.

    decord and dali-cpu give RGB, which no other library equals: `md5` is over it, as gbrp.

    The exit status is 1 if a frame can't be decoded as the clip's packets say; frames outside the
    damage are still given if they are asked for without the others.
    """
    from ..decoders import decoder_names, load_decoder

    library = load_decoder(decoder)
    data, info = open_clip(file)
    wanted = choose(file, info, indices=indices, every=every, fps=fps, uniform=uniform)
    if library.name != REFERENCE:
        if library.name in decoder_names("planes-v1"):
            info = verified(data, info)
        if (reason := library.refusal(info)) is not None:
            raise MediaError(f"{file}: {library.name} refuses this clip: {reason}", stage="decode")
    sheet = None if png is None else Sheet(png, info, wanted)
    ready: dict[int, str] = {}
    printed = 0
    try:
        for frame in library.stream(data, info, wanted):
            row = describe(frame, info)
            if hashed:
                row["md5"] = frame.md5()
            if sheet is not None:
                row["png"] = str(sheet.add(frame))
            ready[frame.index] = json.dumps(row)
            del frame
            while printed < len(wanted) and wanted[printed] in ready:
                sys.stdout.write(ready[wanted[printed]] + "\n")
                printed += 1
    except MediaError as error:
        raise MediaError(
            f"{file}: {error.reason}; {len(ready)} of the {len(set(wanted))} frames asked for came "
            "out. Ask for fewer with --indices to get those outside the damage",
            stage=error.stage,
        ) from error
    finally:
        sys.stdout.flush()
    if sheet is not None:
        sheet.write()


def open_clip(file: Path) -> tuple[bytes, VideoInfo]:
    """A clip's bytes and its probe.

    Raises:
        StorageError: the file can't be read.
        MediaError: no clip that can be used; says why.
    """
    from ..media.probe_video import probe_video

    try:
        data = file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror or error}; expected a clip to read") from error
    if tarfile.is_tarfile(io.BytesIO(data)):  # of pictures FFmpeg would make a clip
        raise MediaError(
            f"{file}: a shard, not a clip: take one out of it with `tar -xf`", stage="probe"
        )
    info = probe_video(data)
    if info.problem is not None:
        raise MediaError(f"{file}: {info.problem}", stage="probe")
    return data, info


def verified(data: bytes, info: VideoInfo) -> VideoInfo:
    """The probe with the mark of ``index --verify``: whether the reference decodes all of it."""
    from ..decoders import load_decoder

    try:
        for _ in load_decoder(REFERENCE).stream(data, info, range(info.num_frames)):
            pass
    except MediaError:
        return replace(info, clean=False)
    return replace(info, clean=True)


def choose(
    file: Path,
    info: VideoInfo,
    *,
    indices: str | None = None,
    every: bool = False,
    fps: float | None = None,
    uniform: int | None = None,
) -> tuple[int, ...]:
    """The frames that the options ask for; all of them if there is no option.

    Raises:
        ConfigError: two options, an index that is not there, or none at all.
    """
    from ..media.sampling import sample_frames

    given = [indices is not None, every, fps is not None, uniform is not None]
    if sum(given) > 1:
        raise ConfigError("give one of --indices, --all, --fps and --uniform, not several")
    if indices is not None:
        return parse_indices(file, indices, info.num_frames)
    if fps is not None:
        if not (math.isfinite(fps) and fps > 0):
            raise ConfigError(f"--fps {fps}: must be above 0")
        sampling = VideoSampling(
            mode="fps", fps=fps, min_frames=1, max_frames=max(1, info.num_frames)
        )
        return sample_frames(info, sampling)
    if uniform is not None:
        return sample_frames(info, VideoSampling(mode="uniform", num_frames=uniform))
    return tuple(range(info.num_frames))


def parse_indices(file: Path, text: str, num_frames: int) -> tuple[int, ...]:
    """``0,5,7`` as numbers, each a frame of the clip."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--indices {text!r}: expected whole numbers with commas between, such as 0,5,7"
        ) from None
    for index in found:
        if not 0 <= index < num_frames:
            raise ConfigError(
                f"--indices: there is no frame {index} in {file}: it has {num_frames}, "
                f"numbered 0 to {num_frames - 1}"
            )
    return found


def describe(frame: DecodedFrame, info: VideoInfo) -> dict[str, Any]:
    """What is printed of a frame, but for its digest."""
    return {
        "index": frame.index,
        "pts": info.start_pts + frame.pts,
        "pts_seconds": float(frame.pts * Fraction(*info.time_base)),
        "size": [frame.width, frame.height],
        "pix_fmt": pixel_format(frame, info),
    }


def pixel_format(frame: DecodedFrame, info: VideoInfo) -> str:
    """FFmpeg's name: the clip's, or another where the format changes on the way (or to RGB)."""
    from ..decoders import pyav_stream

    kind = "rgb" if frame.matrix == "rgb" else "yuv"
    if pyav_stream.describe(info.pix_fmt) == (frame.depth, frame.subsampling, kind):
        return info.pix_fmt
    if kind == "rgb":
        name = "gbrp"
    elif len(frame.planes) == 1:
        name = "gray"
    else:
        name = f"yuv{pyav_stream.SUBSAMPLING_NAMES[frame.subsampling]}p"
    return name if frame.depth == 8 else f"{name}{frame.depth}le"


def frame_picture(frame: DecodedFrame) -> Image.Image:
    """A frame as shown: turned, RGB, by the arithmetic of the pixels that models are given."""
    from PIL import Image

    from ..decoders.base import DecodedFrames
    from ..media.pixels import video_patches
    from ..patches import PatchLayout

    size = frame.orientation.shown(frame.height, frame.width)
    pixels = video_patches(DecodedFrames((frame,)), size, PatchLayout(1, 1, 1))
    return Image.fromarray(pixels.reshape(*size, 3))


class Sheet:
    """Writes frames to a folder as they come, and a sheet of them at the end.

    Args:
        folder: made if it isn't there.
        info: the clip.
        wanted: all frames that will come; of more than `SHEET_FRAMES`, some are on the sheet.
    """

    def __init__(self, folder: Path, info: VideoInfo, wanted: Sequence[int]) -> None:
        self._folder, self._info = folder, info
        distinct = list(dict.fromkeys(wanted))
        step = max(1, -(-len(distinct) // SHEET_FRAMES))
        self._shown = distinct[::step]
        self._thumbs: dict[int, Image.Image] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"--png {folder}: {error.strerror or error}") from error

    def add(self, frame: DecodedFrame) -> Path:
        """Write one frame; its path."""
        picture = frame_picture(frame)
        path = self._folder / f"frame_{frame.index:06d}.png"
        picture.save(path, compress_level=1)
        if frame.index in self._shown:
            seconds = float(frame.pts * Fraction(*self._info.time_base))
            self._thumbs[frame.index] = _thumb(picture, f"{frame.index}   {seconds:.3f} s")
        return path

    def write(self) -> None:
        """Write ``contact_sheet.png``: thumbnails in the order asked for, left to right."""
        from PIL import Image

        thumbs = [self._thumbs[index] for index in self._shown]
        if not thumbs:
            return
        columns = min(SHEET_COLUMNS, len(thumbs))
        wide = max(thumb.width for thumb in thumbs) + GAP
        high = max(thumb.height for thumb in thumbs) + GAP
        rows = -(-len(thumbs) // columns)
        sheet = Image.new("RGB", (columns * wide + GAP, rows * high + GAP), (255, 255, 255))
        for place, thumb in zip(_places(columns, wide, high), thumbs, strict=False):
            sheet.paste(thumb, place)
        sheet.save(self._folder / "contact_sheet.png")


def _places(columns: int, wide: int, high: int) -> Iterator[tuple[int, int]]:
    row = 0
    while True:
        for column in range(columns):
            yield GAP + column * wide, GAP + row * high
        row += 1


def _thumb(picture: Image.Image, label: str) -> Image.Image:
    from PIL import Image, ImageDraw

    scale = THUMB / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    thumb = Image.new("RGB", (THUMB, size[1] + LABEL), (255, 255, 255))
    thumb.paste(picture.resize(size), (0, 0))
    ImageDraw.Draw(thumb).text((1, size[1] + 2), label, (25, 25, 25))
    return thumb
