"""A rank's GPU in the rank's own process: one side stream, on which all of the loader's work lies.

Worker threads fetch and demux; NVDEC decodes, kernels write patches and batches are put together on
the side stream, so its own order is all that they need. The trainer's stream waits for an event of
a step's last work before it reads the batches, never the trainer's thread. Memory of their tensors
belongs to the side stream; each is told that the trainer's uses it (``record_stream``), so it is
not handed out again while the trainer's kernels may still read it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ..backends import ByteBudget
from ..decoders.base import Bytes
from ..decoders.surfaces import SurfaceDecoder
from ..media.info import VideoInfo
from ..patches import PatchLayout

if TYPE_CHECKING:
    import torch

    from ..batch import Batch


@dataclass(frozen=True, slots=True)
class Arrival:
    """A step's batches on the device: whoever reads them says so first, in its own thread."""

    event: Any
    tensors: tuple[torch.Tensor, ...]

    def receive(self) -> None:
        """Have the thread's current stream wait for the work, and keep the memory for it."""
        import torch

        for tensor in self.tensors[:1]:
            torch.cuda.current_stream(tensor.device).wait_event(self.event)
        for tensor in self.tensors:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))


class DeviceStage:
    """Makes clips' patches and batches on one device. Safe between threads, not picklable.

    Args:
        device: ``cuda:0``; ``cpu`` takes the same path without streams, for tests.
        decoder: of clips, on that device; None: clips are made on the CPU and sent.
        surface_budget: bytes on the device for frames of clips that are being decoded.
        kernels: `zephon_mm_kernels.triton`; None imports it.
    """

    def __init__(
        self,
        device: str,
        decoder: SurfaceDecoder | None,
        *,
        surface_budget: int,
        kernels: ModuleType | None = None,
    ) -> None:
        import torch

        self.device = device
        self.decoder = decoder
        self.surfaces = ByteBudget(surface_budget)
        self._kernels = kernels
        new: Any = torch.cuda.Stream
        self._stream = new(device) if device.startswith("cuda") else None

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"what lies on {self.device} can't leave its process: use threads")

    @property
    def makes_clips(self) -> bool:
        """Whether clips are decoded on the device."""
        return self.decoder is not None

    def clip(
        self,
        data: Bytes,
        info: VideoInfo,
        frames: Sequence[int],
        size: tuple[int, int],
        patch: PatchLayout,
    ) -> torch.Tensor:
        """See `clips.clip_patches`. Queued on the side stream; waits for room for the surfaces.

        Raises:
            MediaError: the device doesn't decode the clip.
        """
        from .clips import clip_bytes, clip_patches

        if self._kernels is None:
            from zephon_mm_kernels import triton

            self._kernels = triton
        decoder = self.decoder
        if decoder is None:
            raise ValueError("this stage decodes no clips")
        size_bytes = clip_bytes(info, len(frames))
        self.surfaces.acquire(size_bytes)
        try:
            with self.on_stream():
                return clip_patches(
                    decoder, self._kernels, self.device, data, info, frames, size, patch
                )
        finally:
            self.surfaces.release(size_bytes)

    @contextlib.contextmanager
    def on_stream(self) -> Iterator[None]:
        """Queue this thread's work on the side stream."""
        if self._stream is None:
            yield
            return
        import torch

        with torch.cuda.stream(self._stream):
            yield

    def upload(self, batch: Batch) -> Batch:
        """The batch with every tensor on the device; what lies there already is not copied."""
        return batch.pin_memory().to(self.device, non_blocking=True)

    def arrival(self, batches: Sequence[Batch]) -> Arrival | None:
        """What the reader of a step's batches has to wait for; None on a CPU.

        Called on the side stream, after the last work on them.
        """
        if self._stream is None:
            return None
        import torch

        new: Any = torch.cuda.Event
        event = new()
        event.record(self._stream)
        return Arrival(event, tuple(tensor for batch in batches for tensor in batch.tensors()))
