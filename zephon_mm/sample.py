"""What passes between the stages: references, documents, measurements, recipes.

Plain frozen values, cheap to copy and to pickle. Nothing here reads a file or knows a model.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Outcome = Literal["delivered", "filtered", "dropped", "quarantined"]


class SampleRef(NamedTuple):
    """One draw of the plan: whole numbers only.

    Attributes:
        source: position of the source in ``DataConfig.sources``.
        shard: position of the shard in the source's manifest.
        sample: position of the sample in the shard's index.
        epoch: pass over the source, from 0.
        position: where the draw stands in its lane's stream of the source (see `plan`); rises
            from draw to draw, with gaps, and finds the draw again in constant time.
    """

    source: int
    shard: int
    sample: int
    epoch: int
    position: int


CHECK_BYTES = 3
"""Of a measurement's digest, that a state holds: one change in 17 million goes unseen by them."""


class LiveDocument(NamedTuple):
    """A document that waits to be packed, or a part of one, as a state holds it: all that packing
    asks about, so that it need not be measured again before it is packed.

    Attributes:
        source, position: its draw, see `SampleRef`.
        start, stop: its tokens.
        fitted: the sequence length that it was cut, truncated or re-laid for; 0: it is whole.
        patches: of its media in these tokens, where packing bounds them; else 0.
        check: the first `CHECK_BYTES` of the whole document's digest.
    """

    source: int
    position: int
    start: int
    stop: int
    fitted: int
    patches: int
    check: bytes

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def live(self) -> LiveDocument:
        """Itself, as of a `Piece`."""
        return self


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a document. ``special``: template text, in which special tokens are recognised;
    a sample's own text never has them.
    """

    text: str
    loss: bool = True
    special: bool = False


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A picture: the field of the sample's member that holds it."""

    field: str


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A clip: the field of the member, and the window of it in seconds from its first frame."""

    field: str
    start_seconds: float | None = None
    end_seconds: float | None = None


Part = TextPart | ImagePart | VideoPart


class Turn(NamedTuple):
    """One message of a conversation.

    Attributes:
        loss: whether it is trained on.
        opens: whether another conversation begins with it, in a document of several.
        reasoning: what the assistant thought before it said this.
        calls: a JSON list of the tools that the assistant calls, each
            ``{"type": "function", "function": {"name", "arguments": {…}}}``, an ``id`` where known.
        call_id, name: the call that a tool's turn answers, and the tool; empty: not said.
    """

    role: str
    parts: tuple[Part, ...]
    loss: bool
    opens: bool = False
    reasoning: str = ""
    calls: str = ""
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Document:
    """What a format makes of a sample: parts in reading order, or turns of a conversation.

    ``tools``: a JSON list of the tools that its conversation may call, for the chat template.
    """

    parts: tuple[Part, ...] = ()
    turns: tuple[Turn, ...] = ()
    tools: str = ""

    @property
    def conversations(self) -> tuple[tuple[Turn, ...], ...]:
        """The turns, cut where another conversation begins."""
        opening = [at for at, turn in enumerate(self.turns) if turn.opens and at]
        edges = [0, *opening, len(self.turns)]
        return tuple(self.turns[a:b] for a, b in pairwise(edges))

    @property
    def all_parts(self) -> tuple[Part, ...]:
        """Parts in order, those of turns too."""
        return (*self.parts, *(part for turn in self.turns for part in turn.parts))


@dataclass(frozen=True, slots=True)
class MediaSpan:
    """Where a medium lies in a document's tokens, and what must be decoded for it.

    Attributes:
        kind: ``image`` or ``video``.
        member: position of the member in its shard's index.
        start, stop: its block of tokens in the document, wrappers (vision start and end,
            timestamps) included; a document is never cut inside.
        grid: patches along time, height, width.
        size: (height, width) in pixels after resizing.
        source_size: (height, width) as shown, rotation and crop applied.
        frames: indices of the chosen frames in presentation order; empty for a picture.
        pts: their presentation times, in time-base ticks from the first shown frame.
        time_base: (numerator, denominator) of a tick in seconds.
        fps: sampled frames a second, as the model is told it.
    """

    kind: Literal["image", "video"]
    member: int
    start: int
    stop: int
    grid: tuple[int, int, int]
    size: tuple[int, int]
    source_size: tuple[int, int]
    frames: tuple[int, ...] = ()
    pts: tuple[int, ...] = ()
    time_base: tuple[int, int] = (1, 1)
    fps: float = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        """A call with the fields: a third of what pickling a frozen dataclass costs."""
        return MediaSpan, _span_fields(self)

    def at(self, start: int, stop: int) -> MediaSpan:
        """The same medium elsewhere; by place, as `dataclasses.replace` costs three times that."""
        kind, member, _, _, *rest = _span_fields(self)
        return MediaSpan(kind, member, start, stop, *rest)

    @property
    def num_patches(self) -> int:
        """Rows of ``pixel_values`` that the medium takes."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def pts_seconds(self) -> tuple[float, ...]:
        """Presentation times of the chosen frames, in seconds from the first shown frame."""
        return tuple(p * self.time_base[0] / self.time_base[1] for p in self.pts)


@dataclass(frozen=True, slots=True)
class MeasuredDocument:
    """A document's tokens and the layout of its media (C5); no pixels.

    Attributes:
        tokens: int32 [n], placeholders of media in place.
        loss: bool [n], which tokens are targets; never on a medium's block.
        media: in token order.
        digest: 16 bytes over all of the above; a state holds the first few (`LiveDocument`).
    """

    ref: SampleRef
    shard: str
    key: str
    tokens: NDArray[np.int32]
    loss: NDArray[np.bool_]
    media: tuple[MediaSpan, ...]
    digest: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """As `MediaSpan`, and the arrays as bytes, which are theirs again without a copy."""
        arrays = self.tokens.tobytes(), self.loss.tobytes()
        place = self.ref, self.shard, self.key
        return _document, (*place, *arrays, self.media, self.digest)

    @property
    def num_patches(self) -> int:
        return sum(span.num_patches for span in self.media)


_span_fields = attrgetter(*(field.name for field in fields(MediaSpan)))


def _document(
    ref: SampleRef,
    shard: str,
    key: str,
    tokens: bytes,
    loss: bytes,
    media: tuple[MediaSpan, ...],
    digest: bytes,
) -> MeasuredDocument:
    ids, mask = np.frombuffer(tokens, np.int32), np.frombuffer(loss, np.bool_)
    return MeasuredDocument(ref, shard, key, ids, mask, media, digest)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A sample that gives no document, and why. Counted, logged once, never silent."""

    ref: SampleRef
    shard: str
    key: str
    outcome: Literal["filtered", "dropped", "quarantined"]
    stage: str
    reason: str


Measurement = MeasuredDocument | Rejected
