"""C7: on every clip of the cases that decodes, the CPU kernels' patches are the reference's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from zephon_mm_kernels import reference

from zephon_mm.decoders import load_decoder
from zephon_mm.errors import MediaError
from zephon_mm.media.info import VideoInfo
from zephon_mm.media.pixels import video_patches
from zephon_mm.media.probe import probe_member, read_probe
from zephon_mm.patches import PatchLayout


def test_every_clip_equals_the_reference(cases: Path) -> None:
    decoder = load_decoder("pyav")
    checked, wrong = 0, []
    for path in sorted((cases / "media" / "video").iterdir()):
        data = path.read_bytes()
        try:
            info = read_probe(probe_member(path.suffix[1:], data) or b"")
            if not isinstance(info, VideoInfo) or info.problem is not None:
                continue
            decoded = decoder.decode(data, info, [0])
        except MediaError:  # damaged: no pixels
            continue
        frame, turn = decoded.frames[0], decoded.frames[0].orientation
        size, p = ((56, 84), 14) if checked % 2 else ((96, 64), 16)
        rgb = reference.frame_rgb(
            frame.planes, frame.subsampling, frame.depth, frame.matrix, frame.full_range,
            (turn.transpose, turn.mirror_x, turn.mirror_y), size,
        )  # fmt: skip
        got = video_patches(decoded, size, PatchLayout(p, 2, 2))
        checked += 1
        if not np.array_equal(got, reference.patchify(rgb[None], p, 2, 2)):
            wrong.append(path.name)
    assert not wrong and checked > 40
