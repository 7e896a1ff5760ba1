"""``index --verify``: decode everything once with the reference decoder (C6).

Marks only route media that are not clean to that decoder; they change no batch.
"""

from __future__ import annotations

from ..decoders import REFERENCE, load_decoder
from ..errors import MediaError
from .info import ImageInfo, read_probe


def verify_member(field: str, data: bytes | bytearray | memoryview, probe: bytes | None) -> bool:
    """Whether a medium is clean: every frame decodes as its probe says, without any error.

    Args:
        field: the member's field, for messages only.
        data: the member's bytes.
        probe: its probe; None (no medium) is clean.
    """
    if probe is None:
        return True
    info = read_probe(probe)
    if info.problem is not None:
        return False
    try:
        if isinstance(info, ImageInfo):
            from .animation import AnimationDecoder
            from .animation_times import clip_of
            from .images import decode_image

            decode_image(data, info)
            animation = clip_of(info)
            if animation is not None and animation.problem is None:
                for _ in AnimationDecoder().stream(data, animation, range(animation.num_frames)):
                    pass
        else:
            decoder = load_decoder(REFERENCE)
            for _ in decoder.stream(data, info, range(info.num_frames)):
                pass
    except MediaError:
        return False
    return True
