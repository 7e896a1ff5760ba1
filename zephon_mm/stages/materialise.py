"""Materialising: one medium's pixels, as uint8 patches in the model's order (C6, C7).

Never changes a shape: a medium that was measured and can't be decoded gives as many patches of the
model's mean colour, and says why. Failures of the world (a changed shard, a disk fault) are raised.

A clip's frames are turned into patches as they leave the decoder and let go, so the memory of a
task is its encoded bytes, its patches and the decoder's own few frames.

Routing: in class ``planes-v1`` another decoder than the reference gets each clip first, and refuses
some: among others those that ``index --verify`` has not marked clean. The reference decodes
whatever another refuses or fails at: its verdict is the only one. How often is counted, and the
first time logged, since it may be all of them. In an RGB class a refusal is damage.
Animated pictures that are shown as clips are decoded by Pillow in every class.
With a `DeviceStage` the same holds for its decoder, and patches of clips are tensors on the device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ..decoders import REFERENCE, decoder_names, load_decoder
from ..errors import MediaError
from ..media.info import ImageInfo, VideoInfo, is_clip, read_probe
from ..media.limits import MAX_HELD_BYTES
from ..models import ModelFamily
from ..models.normalise import mean_patches
from ..patches import are_bytes
from ..sample import MediaSpan, SampleRef
from ..shards import ShardReader
from ..shards.index import Member
from ..shards.reader import ReadCounts

if TYPE_CHECKING:
    from ..device import DeviceStage
    from ..patches import Patches

_log = logging.getLogger("zephon_mm")

Bytes = bytes | bytearray | memoryview
Rows = NDArray[np.uint8]

_PICTURE_BYTES = 12
"""A source pixel of a picture: stored, as shown, as RGB, resized in one direction."""
_CLIP_BYTES = 3 * 20
"""A source pixel of a clip: three bytes (10-bit 4:2:0), 16 reference frames, some in flight."""


@dataclass(frozen=True, slots=True)
class MediaTask:
    """One medium to decode: the sample that it belongs to, and what is wanted of it."""

    ref: SampleRef
    span: MediaSpan

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaTask, (self.ref, self.span)


@dataclass(frozen=True, slots=True)
class MediaResult:
    """One medium's pixels.

    Attributes:
        patches: uint8 [span.num_patches, columns]: an array, or a tensor on the run's device.
        damaged: why the medium could not be decoded (its patches have the mean colour), or None.
    """

    patches: Patches
    damaged: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return MediaResult, (self.patches, self.damaged)


@dataclass(slots=True)
class MediaCounts:
    """What a materialiser did so far: for tests and statistics.

    Attributes:
        pictures, clips: media, damaged ones included.
        frames: of clips, decoded.
        bytes: of the encoded media.
        damaged: media that could not be decoded.
        rerouted: media that the reference decoded in place of the decoder of the run.
    """

    pictures: int = 0
    clips: int = 0
    frames: int = 0
    bytes: int = 0
    damaged: int = 0
    rerouted: int = 0


_COUNTS: Final = tuple(item.name for item in fields(MediaCounts))


class Materialiser:
    """Decodes media, a few a call. Stateless but for its counts, picklable, safe between threads.

    Args:
        reader: of the sources' shards.
        family: of the run; its patches and mean colours.
        decoder: of clips, by name.
        image_decoder: of pictures: ``pillow`` or ``torchvision``.
        announce: tell the reader of each task as it is submitted, so that a remote shard's bytes
            are fetched while others are decoded; of use only where this process decodes.
        device: makes the clips that it can, of the class whose decoder it has.
    """

    def __init__(
        self,
        reader: ShardReader,
        family: ModelFamily,
        *,
        decoder: str = REFERENCE,
        image_decoder: str = "pillow",
        announce: bool = False,
        device: DeviceStage | None = None,
    ) -> None:
        self.reader = reader
        self._family = family
        self._decoder, self._image_decoder = decoder, image_decoder
        self._announce = announce
        self._device = device
        self._start_counting()

    def _start_counting(self) -> None:
        self._rerouted = False
        self.counts = MediaCounts()
        self._count_lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("reader", "_family", "_decoder", "_image_decoder", "_announce", "_device")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start_counting()

    def __call__(
        self, tasks: Sequence[MediaTask], into: Sequence[Rows] | None = None
    ) -> list[MediaResult]:
        """`one` of each, in order."""
        rows = [None] * len(tasks) if into is None else into
        return [self.one(task, out) for task, out in zip(tasks, rows, strict=True)]

    def one(self, task: MediaTask, into: Rows | None = None) -> MediaResult:
        """The medium's patches; ``into`` rows that are theirs, as many as its span says.

        Raises:
            ShardIndexError, StorageError: its bytes are not those that were indexed, or can't be
                read. Nothing is ever skipped for it.
        """
        ref, span = task.ref, task.span
        member = self.reader.member(ref.source, ref.shard, span.member)
        damaged: str | None = None
        try:
            patches = self._decode(task, member, into)
        except MediaError as error:
            damaged = f"member {member.name!r}: {' '.join(error.reason.split())}"
            image = span.kind == "image"
            mean = self._family.image_mean if image else self._family.video_mean
            patches = mean_patches(mean, span.num_patches, self._family.patches)
        expected = (span.num_patches, self._family.patches.columns)
        if patches.shape != expected or not are_bytes(patches):
            raise ValueError(
                f"{member.name!r} of {self.reader.url(ref.source, ref.shard)} gave patches "
                f"{patches.dtype} {patches.shape}, expected uint8 {expected}"
            )
        if into is not None and patches is not into:
            into[...] = patches
            patches = into
        with self._count_lock:
            self.counts.pictures += span.kind == "image"
            self.counts.clips += span.kind == "video"
            self.counts.frames += 0 if damaged else len(span.frames)
            self.counts.bytes += member.length
            self.counts.damaged += damaged is not None
        return MediaResult(patches, damaged)

    def modules_of(self, tasks: Sequence[MediaTask]) -> tuple[str, ...]:
        """What tasks load when they are the first of their kind, for the processes backend.

        Of the decoders of clips only the reference: others may start threads.
        """
        return tuple(dict.fromkeys(name for task in tasks for name in self._modules(task)))

    def _modules(self, task: MediaTask) -> tuple[str, ...]:
        package = __package__.rpartition(".")[0]
        ready = f"{package}.media.ready_for_pictures"
        if task.span.kind == "video":
            member = self.reader.member(task.ref.source, task.ref.shard, task.span.member)
            clips = f"{package}.media.ready_for_clips"
            return (clips,) if is_clip(member.probe) else (clips, ready)
        other = (f"{package}.media.images_torchvision",)
        return (ready, *(other if self._image_decoder == "torchvision" else ()))

    def take_counts(self) -> tuple[MediaCounts, ReadCounts]:
        """What was done since the last call: for a worker, whose parent adds it to its own."""
        with self._count_lock:
            taken, self.counts = self.counts, MediaCounts()
        return taken, self.reader.take_counts()

    def add_counts(self, counts: tuple[MediaCounts, ReadCounts]) -> None:
        """Add what a worker did."""
        media, reads = counts
        with self._count_lock:
            for name in _COUNTS:
                setattr(self.counts, name, getattr(self.counts, name) + getattr(media, name))
        self.reader.add_counts(reads)

    def task_bytes(self, task: MediaTask) -> int:
        """An estimate of the memory that a task needs: encoded bytes, patches, decoded frames.

        Asked for as the task is submitted, which is when its bytes are announced.
        """
        ref, span = task.ref, task.span
        if self._announce:
            self.reader.expect(ref.source, ref.shard, span.member)
        member = self.reader.member(ref.source, ref.shard, span.member)
        pixels = span.source_size[0] * span.source_size[1]
        working = pixels * (_PICTURE_BYTES if span.kind == "image" else _CLIP_BYTES)
        if span.kind == "video" and self._decoder not in decoder_names("planes-v1"):
            working += min(MAX_HELD_BYTES, 3 * pixels * len(span.frames))
        return member.length + span.num_patches * self._family.patches.columns + working

    def _decode(self, task: MediaTask, member: Member, into: Rows | None) -> Patches:
        ref, span = task.ref, task.span
        info = None if member.probe is None else read_probe(member.probe)
        if span.kind == "image" and isinstance(info, ImageInfo):
            data = self.reader.read(ref.source, ref.shard, span.member)
            return self._picture(data, info, span, into, clean=member.clean is True)
        if span.kind == "video" and isinstance(info, ImageInfo):
            data = self.reader.read(ref.source, ref.shard, span.member)
            return self._animation(data, info, span)
        if span.kind == "video" and isinstance(info, VideoInfo):
            data = self.reader.read(ref.source, ref.shard, span.member)
            return self._clip(data, replace(info, clean=member.clean), span, into)
        raise MediaError(f"the index holds no {span.kind} there", stage="probe")

    # The libraries are loaded by the first task that needs them.

    def _picture(
        self, data: Bytes, info: ImageInfo, span: MediaSpan, into: Rows | None, *, clean: bool
    ) -> Rows:
        from ..media.views import view_patches

        views, layout = self._family.views(span), self._family.patches
        if self._image_decoder == "torchvision":
            from ..media import images_torchvision as other

            reason = other.refusal(data, info, clean=clean)
            if reason is None:
                try:
                    return view_patches(data, info, views, layout, other.decode_image, into)
                except MediaError as error:
                    reason = error.reason
            self._reroute("Pillow", reason)
        return view_patches(data, info, views, layout, into=into)

    def _animation(self, data: Bytes, info: ImageInfo, span: MediaSpan) -> Rows:
        from ..media.animation import AnimationDecoder
        from ..media.animation_times import clip_of
        from ..media.pixels import stream_patches

        clip = clip_of(info)
        if clip is None or clip.problem is not None:
            raise MediaError("the index holds no animation there", stage="probe")
        layout = self._family.patches
        return stream_patches(AnimationDecoder(), data, clip, span.frames, span.size, layout)

    def _clip(self, data: Bytes, info: VideoInfo, span: MediaSpan, into: Rows | None) -> Patches:
        from ..media.pixels import stream_patches

        wanted = (data, info, span.frames, span.size, self._family.patches)
        device = self._device if self._device is not None and self._device.makes_clips else None
        on_cpu = partial(stream_patches, into=into)
        make: Callable[..., Patches] = (
            partial(on_cpu, load_decoder(self._decoder)) if device is None else device.clip
        )
        if self._decoder not in decoder_names("planes-v1"):
            return make(*wanted)
        if device is not None or self._decoder != REFERENCE:
            try:
                return make(*wanted)
            except MediaError as error:  # a refusal too: the reference judges
                self._reroute(REFERENCE, error.reason)
        return on_cpu(load_decoder(REFERENCE), *wanted)

    def _reroute(self, to: str, reason: str) -> None:
        with self._count_lock:
            self.counts.rerouted += 1
            first, self._rerouted = not self._rerouted, True
        if first:
            _log.warning(
                "%s decodes what the run's decoder leaves to it, first because: %s", to, reason
            )
