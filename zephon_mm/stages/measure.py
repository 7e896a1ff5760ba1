"""Measuring: a sample's tokens, loss mask and layout of media, without decoding anything (C5).

A pure function of (bytes, `SampleRef`, `DataConfig`). Reads a sample's text members; of media it
reads the probe that the index holds. A sample that its own bytes make impossible gives `Rejected`;
a failure of the world (a changed shard, a disk fault) or of the config stands in the results as
the exception itself, at its place, for the loader to raise there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import rng
from ..config import DataConfig
from ..errors import ConfigError, MediaError, SampleError, ZephonError
from ..formats import CONVERSATIONS, Format, FormatOptions, Sample, check_options, load_format
from ..formats.template import split_template
from ..media.animation_times import clip_of
from ..media.info import ImageInfo, VideoInfo, read_probe
from ..media.sampling import sample_frames, sampled_fps
from ..models import ModelFamily, measure_digest
from ..models.tokenizer import Tokenizer
from ..sample import (
    Document,
    ImagePart,
    MeasuredDocument,
    Measurement,
    MediaSpan,
    Part,
    Rejected,
    SampleRef,
    TextPart,
    VideoPart,
)
from ..shards import ShardReader
from ..shards.reader import ReadCounts
from .chat import ChatTemplate
from .filters import Candidate, SampleFilter
from .parts import animations_as_clips, check_kinds, opened
from .texts import Conversations
from .tokens import Block, Encoded, encode_documents

_REASON_CHARACTERS = 500
Outcome = Literal["filtered", "dropped", "quarantined"]
_OUTCOMES: dict[str, Outcome] = {"filtered": "filtered", "dropped": "dropped"}


class _Draft(NamedTuple):
    """A document with its media laid out and its text not yet tokenised."""

    ref: SampleRef
    shard: str
    key: str
    parts: tuple[TextPart | Block, ...]
    media: tuple[MediaSpan, ...]


class Measurer:
    """Measures samples, many at a call. Stateless, picklable, safe to share between threads.

    Args:
        config: what decides documents.
        reader: of the sources' shards.
        tokenizer: of the run.
        family: of the run; lays media out.

    Raises:
        ConfigError: a source's format or one of its options is not there, or the template is wrong.
    """

    def __init__(
        self, config: DataConfig, reader: ShardReader, tokenizer: Tokenizer, family: ModelFamily
    ) -> None:
        self.config = config
        self.reader = reader
        self._tokenizer = tokenizer
        self._family = family
        split_template(config.template)
        if config.image.animated == "video" and "video" not in family.placeholders:
            raise ConfigError(
                f"image.animated='video' has no place with model={family.name!r}, which takes no "
                "clips: leave it at 'first'"
            )
        for source in config.sources:
            check_options(source.format, source.options)
            if source.format in CONVERSATIONS:
                ChatTemplate(tokenizer, family.placeholders)
        self._load()

    def _load(self) -> None:
        self._formats: list[tuple[Format, FormatOptions]] = [
            (load_format(source.format), FormatOptions(source.options, self.config.template))
            for source in self.config.sources
        ]
        self._filters = [SampleFilter(source.filter) for source in self.config.sources]
        self._animated = self.config.image.animated == "video"
        self._chat: Conversations | None = None
        self._chat_lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("config", "reader", "_tokenizer", "_family")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._load()

    def get_ready(self) -> None:
        """Load the tokenizer and compile the chat template, if that is used, before the first call.

        For a process that forks others that measure: they then share them.
        """
        self._tokenizer.get_ready()
        if any(source.format in CONVERSATIONS for source in self.config.sources):
            self._conversations()

    def take_counts(self) -> ReadCounts:
        """See `ShardReader.take_counts`."""
        return self.reader.take_counts()

    def add_counts(self, counts: ReadCounts) -> None:
        """See `ShardReader.add_counts`."""
        self.reader.add_counts(counts)

    def announce(self, refs: Sequence[SampleRef]) -> None:
        """These are measured soon, in this process: bytes of remote shards are fetched now."""
        self.reader.expect_samples([(ref.source, ref.shard, ref.sample) for ref in refs])

    def __call__(self, refs: Sequence[SampleRef]) -> list[Measurement | Exception]:
        """A result for each reference, in order."""
        self.reader.gather([(ref.source, ref.shard, ref.sample) for ref in refs])
        drafts = [self._draft(ref) for ref in refs]
        whole = [draft for draft in drafts if isinstance(draft, _Draft)]
        encoded = iter(encode_documents([draft.parts for draft in whole], self._tokenizer))
        return [
            _finish(draft, next(encoded)) if isinstance(draft, _Draft) else draft
            for draft in drafts
        ]

    def _draft(self, ref: SampleRef) -> _Draft | Rejected | Exception:
        shard = key = ""
        try:
            index = self.reader.index(ref.source, ref.shard)
            rows = index.block(ref.sample)
            shard, key = index.shard, rows.key(ref.sample)
            problem = rows.problem(ref.sample)
            if problem is not None:
                raise SampleError(problem, stage="index")
            self._filters[ref.source].check_key(key)
            sample = _sample(self.reader, ref.source, ref.shard, key, rows.members(ref.sample))
            parts = self._parts(ref, sample)
            texts = [part for part in parts if isinstance(part, TextPart)]
            if len(texts) == len(parts):
                return _Draft(ref, shard, key, tuple(texts), ())
            alone = sum(isinstance(part, ImagePart) for part in parts) == 1
            laid_out: list[TextPart | Block] = []
            media: list[MediaSpan] = []
            for part in parts:
                if isinstance(part, TextPart):
                    laid_out.append(part)
                    continue
                span, block = self._medium(ref, sample, part, len(media), alone)
                before, after = (TextPart(text, loss=False) for text in self._family.around(span))
                laid_out += [before, block, after]
                media.append(span)
            return _Draft(ref, shard, key, tuple(laid_out), tuple(media))
        except SampleError as error:
            return _rejected(ref, shard, key, error)
        except Exception as error:
            return error

    def _parts(self, ref: SampleRef, sample: Sample) -> tuple[Part, ...]:
        """The document's parts in order, template text included."""
        function, options = self._formats[ref.source]
        document = _call(function, sample, options)
        if self._animated:
            document = animations_as_clips(document, partial(self._is_animation, ref, sample))
        if self._filters[ref.source].active:
            self._filter(ref, sample, document)
        check_kinds(document, self._family)
        opening = self._family.opening
        if document.turns:
            parts = tuple(
                part
                for turns in document.conversations
                for part in opened(self._conversations().render(turns, document.tools), opening)
            )
        elif any(isinstance(part, TextPart) and part.special for part in document.parts):
            parts = opened(document.parts, opening)  # it has template text of its own
        else:
            parts = opened(options.surrounded(document.parts).parts, opening)
        for part in parts:
            if not isinstance(part, TextPart) and part.field not in sample.fields:
                raise sample.missing(f"member {part.field!a}, which the format names")
        return parts

    def _filter(self, ref: SampleRef, sample: Sample, document: Document) -> None:
        """Raise SampleError (kind ``filtered``) if the source's filter leaves the sample out."""
        infos = []
        for part in document.all_parts:
            position = None if isinstance(part, TextPart) else sample.fields.get(part.field)
            if position is not None:
                probe = self.reader.member(ref.source, ref.shard, position).probe
                infos += [] if probe is None else [self._shown(read_probe(probe), part)]
        self._filters[ref.source].check(Candidate(sample.key, sample.shard, document, tuple(infos)))

    def _is_animation(self, ref: SampleRef, sample: Sample, field: str) -> bool:
        position = sample.fields.get(field)
        if position is None:
            return False
        probe = self.reader.member(ref.source, ref.shard, position).probe
        info = None if probe is None else read_probe(probe)
        return isinstance(info, ImageInfo) and clip_of(info) is not None

    def _shown(self, info: ImageInfo | VideoInfo, part: Part) -> ImageInfo | VideoInfo:
        """The probe of a part's member; of an animation that is shown as a clip, a clip's."""
        if self._animated and isinstance(part, VideoPart) and isinstance(info, ImageInfo):
            return clip_of(info) or info
        return info

    def _conversations(self) -> Conversations:
        with self._chat_lock:
            if self._chat is None:
                placeholders = self._family.placeholders
                template = ChatTemplate(self._tokenizer, placeholders)
                self._chat = Conversations(template, placeholders)
            return self._chat

    def _medium(
        self,
        ref: SampleRef,
        sample: Sample,
        part: ImagePart | VideoPart,
        number: int,
        alone: bool,
    ) -> tuple[MediaSpan, Block]:
        """Lay a medium out: its span, not yet placed, and its block of tokens.

        ``number``: which of the document's media it is; ``alone``: its only picture.
        """
        position = sample.fields[part.field]
        member = self.reader.member(ref.source, ref.shard, position)
        try:
            info = None if member.probe is None else read_probe(member.probe)
            if isinstance(info, ImageInfo):
                self._check_pixels(info)
                info = self._shown(info, part)
            if isinstance(part, ImagePart) and isinstance(info, ImageInfo):
                span = self._image(position, info, alone)
            elif isinstance(part, VideoPart) and isinstance(info, VideoInfo):
                span = self._video(ref, position, info, part, number)
            else:
                wanted = "picture" if isinstance(part, ImagePart) else "clip"
                raise MediaError(f"its extension is not that of a {wanted}", stage="probe")
        except SampleError as error:
            raise MediaError(
                f"member {member.name!r}: {error.reason}", stage=error.stage, kind=error.kind
            ) from error
        return span, Block(self._family.block(span))

    def _check_pixels(self, info: ImageInfo) -> None:
        most = self.config.image.max_source_pixels
        if info.width * info.height > most:
            raise MediaError(
                f"{info.width}×{info.height} pixels are over image.max_source_pixels={most}",
                stage="layout",
                kind="dropped",
            )

    def _image(self, position: int, info: ImageInfo, alone: bool) -> MediaSpan:
        if info.problem is not None:
            raise MediaError(info.problem, stage="probe")
        layout = self._family.layout_image(info.height, info.width, alone=alone)
        return MediaSpan(
            kind="image",
            member=position,
            start=0,
            stop=0,
            grid=layout.grid,
            size=layout.size,
            source_size=(info.height, info.width),
        )

    def _video(
        self, ref: SampleRef, position: int, info: VideoInfo, part: VideoPart, number: int
    ) -> MediaSpan:
        """``number``: which of the document's media it is; each has a random stream of its own."""
        source = self.config.sources[ref.source].id
        key = rng.key(
            "sample", self.config.seed, source, ref.shard, ref.sample, ref.epoch, "frames", number
        )
        chosen = sample_frames(
            info,
            self.config.video,
            start_seconds=part.start_seconds,
            end_seconds=part.end_seconds,
            stream_key=key,
        )
        frames = self._family.shown_frames(chosen)
        span = MediaSpan(
            kind="video",
            member=position,
            start=0,
            stop=0,
            grid=(0, 0, 0),
            size=(0, 0),
            source_size=(info.height, info.width),
            frames=frames,
            pts=tuple(int(info.pts[frame]) for frame in frames),
            time_base=info.time_base,
            fps=sampled_fps(info, chosen),
        )
        layout = self._family.layout_video(
            len(frames), info.height, info.width, span.pts_seconds, span.fps
        )
        return replace(span, grid=layout.grid, size=layout.size)


def read_sample(reader: ShardReader, source: int, shard: int, number: int) -> Sample:
    """A sample as formats see it; its members are read when they are asked for."""
    block = reader.index(source, shard).block(number)
    return _sample(reader, source, shard, block.key(number), block.members(number))


def _sample(
    reader: ShardReader, source: int, shard: int, key: str, members: Mapping[str, int]
) -> Sample:
    def read(position: int) -> bytes | memoryview:
        return reader.read(source, shard, position)

    def name(position: int) -> str:
        return reader.member(source, shard, position).name

    return Sample(key, reader.url(source, shard), members, read, name)


def _call(function: Format, sample: Sample, options: FormatOptions) -> Document:
    """Call a format. What a user's function raises on a sample's content quarantines the sample."""
    try:
        document = function(sample, options)
    except (ZephonError, OSError, MemoryError):
        raise
    except Exception as error:
        raise SampleError(
            f"the format raised {type(error).__name__}: {error}", stage="format"
        ) from error
    if not isinstance(document, Document) or (document.parts and document.turns):
        got = "both parts and turns" if isinstance(document, Document) else type(document).__name__
        raise ConfigError(
            f"format {getattr(function, '__name__', function)!r} gave {got}, expected a Document "
            "with parts or with turns"
        )
    return document


def _finish(draft: _Draft, encoded: Encoded | SampleError) -> Measurement:
    """Put the media where their blocks are, or reject a document without a target token."""
    if isinstance(encoded, SampleError):
        return _rejected(draft.ref, draft.shard, draft.key, encoded)
    if not np.count_nonzero(encoded.loss[1:]):
        reason = f"none of its {len(encoded.tokens)} tokens is a target"
        return Rejected(draft.ref, draft.shard, draft.key, "filtered", "tokenise", reason)
    media = draft.media and tuple(
        span.at(start, stop)
        for span, (start, stop) in zip(draft.media, encoded.blocks, strict=True)
    )
    tokens, loss, _ = encoded
    digest = measure_digest(tokens, loss, media)
    return MeasuredDocument(draft.ref, draft.shard, draft.key, tokens, loss, media, digest)


def _rejected(ref: SampleRef, shard: str, key: str, error: SampleError) -> Rejected:
    line = " ".join(error.reason.split())[:_REASON_CHARACTERS]
    reason = line.encode("utf-8", "backslashreplace").decode()
    outcome: Outcome = _OUTCOMES.get(error.kind, "quarantined")
    return Rejected(ref, shard, key, outcome, error.stage, reason)
