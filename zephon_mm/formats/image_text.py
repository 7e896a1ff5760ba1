"""``image_text``: a picture and its caption, as img2dataset and cc3m-wds write them."""

from __future__ import annotations

from ..media.info import IMAGE_EXTENSIONS
from ..sample import Document, ImagePart
from .base import FormatOptions, Sample
from .text import read_text

OPTIONS = frozenset({"text_key", "text_field", "image_field"})
_TEXT_KEYS = ("caption", "text")


def image_text(sample: Sample, options: FormatOptions) -> Document:
    """A document of one picture and the text that belongs to it."""
    field = options.string("image_field")
    found = sample.one_of(IMAGE_EXTENSIONS if field is None else (field.lower(),))
    if found is None:
        wanted = repr(field) if field else "'jpg', 'png', 'webp' …"
        advice = "set options.image_field, or key='last_dot' if names have dots"
        if field is not None:
            advice = "options.image_field names it: leave it out where a sample has one picture"
        raise sample.missing(f"picture (a member {wanted})", advice)
    return options.captioned((ImagePart(found),), read_text(sample, options, _TEXT_KEYS))
