"""2,000 clips opened in one process leave threads, descriptors and memory where they were."""

from __future__ import annotations

import gc
from dataclasses import replace

import psutil
import pytest

from tests.unit.media.clips import make_clip
from zephon_mm.decoders import decoder_names, load_decoder
from zephon_mm.errors import MissingDependencyError
from zephon_mm.media.probe_video import probe_video


@pytest.mark.parametrize("name", decoder_names("planes-v1"))  # RGB ones: in their own tests
def test_two_thousand_opens(name: str) -> None:
    try:
        decoder = load_decoder(name)
    except MissingDependencyError as error:  # CI has it, and fails here if it hasn't
        pytest.skip(str(error))
    data = make_clip(frames=4, size=(32, 32), options={"g": "2"})
    info = replace(probe_video(data), clean=True)
    (want,) = decoder.decode(data, info, [2])
    broken = data[: len(data) // 2]
    process = psutil.Process()
    before = (0, 0, 0)
    for number in range(2000):
        if number == 400:  # pools are warm
            gc.collect()
            before = (process.num_threads(), process.num_fds(), process.memory_info().rss)
        if number % 4 == 3:
            assert probe_video(broken).problem is not None
        elif number % 4 == 2:
            next(iter(decoder.stream(data, info, [0, 1, 3])))  # left early
        else:
            (frame,) = decoder.decode(data, info, [2])
            assert frame.pts == want.pts
    assert frame.md5() == want.md5()
    gc.collect()
    assert process.num_threads() <= before[0]
    assert process.num_fds() <= before[1]
    assert process.memory_info().rss - before[2] < 12_000_000
