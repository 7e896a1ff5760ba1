"""``video_text``: a clip and its caption, as video2dataset writes them.

video2dataset cuts its clips into files of their own and leaves ``clips: [[start, end]]`` in the
metadata to say where they came from, so the whole file is used. With ``clip_window: true`` the file
is the uncut video and the one window that ``clips`` names is used.
"""

from __future__ import annotations

from ..media.info import VIDEO_EXTENSIONS
from ..sample import Document, VideoPart
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    malformed,
    window,
)
from .text import read_text

OPTIONS = frozenset({"text_key", "text_field", "video_field", "clip_window"})
_TEXT_KEYS = ("caption", "text")


def video_text(sample: Sample, options: FormatOptions) -> Document:
    """A document of one clip and the text that belongs to it."""
    field = options.string("video_field")
    found = sample.one_of(VIDEO_EXTENSIONS if field is None else (field.lower(),))
    if found is None:
        wanted = repr(field) if field else "'mp4', 'webm', 'mkv' …"
        advice = "set options.video_field, or key='last_dot' if names have dots"
        if field is not None:
            advice = "options.video_field names it: leave it out where a sample has one clip"
        raise sample.missing(f"clip (a member {wanted})", advice)
    start, end = _clip(sample) if options.flag("clip_window") else (None, None)
    text = read_text(sample, options, _TEXT_KEYS)
    return options.captioned((VideoPart(found, start, end),), text)


def _clip(sample: Sample) -> tuple[float, float]:
    what = f"member {sample.member_name('json')!r}: 'clips'"
    data = checked_object(sample.json(), f"member {sample.member_name('json')!r}")
    clips = checked_list(data.get("clips"), what)
    if len(clips) != 1:
        raise malformed(f"{what} names {len(clips)} windows, expected one a sample")
    pair = checked_list(clips[0], f"{what}[0]")
    if len(pair) != 2:
        raise malformed(f"{what}[0] has {len(pair)} values, expected [start, end]")
    return window(pair[0], pair[1], f"{what}[0]")
