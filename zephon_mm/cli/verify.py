"""What ``zephon-mm index --verify`` does with a medium: decode all of it, once.

The verdict is the reference decoder's (C6). Marks only route media that are not clean to that
decoder; they change no batch.
"""

from __future__ import annotations

from ..errors import MediaError


def verify_member(field: str, data: bytes | memoryview, probe: bytes) -> bool:
    """Whether a medium decodes to its end without damage.

    Args:
        field: the member's field; not needed, the probe says what it is.
        data: the member's bytes.
        probe: its probe, as `media.probe.probe_member` made it.
    """
    from ..decoders import load_decoder
    from ..media.image_file import IMAGE_ERRORS, open_image
    from ..media.info import VideoInfo, read_probe

    del field
    info = read_probe(probe)
    if info.problem is not None:
        return False
    try:
        if isinstance(info, VideoInfo):
            for _ in load_decoder("pyav").stream(data, info, range(info.num_frames)):
                pass
        else:
            with open_image(data, info.width * info.height) as image:
                image.load()
    except (MediaError, *IMAGE_ERRORS):
        return False
    return True
