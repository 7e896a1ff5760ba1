"""Which packets of VP9 are left out: never one that a wanted frame depends on."""

from __future__ import annotations

import io

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.media.clips import make_clip
from zephon_mm.decoders.vp9 import ALL_SLOTS, Vp9Frame, needed_packets, vp9_frames

LAYERS = {
    "g": "60",
    "b": "400k",
    "deadline": "realtime",
    "cpu-used": "8",
    "lag-in-frames": "0",
    "error-resilient": "1",
    "ts-parameters": "ts_number_layers=3:ts_target_bitrate=200,280,400:ts_rate_decimator=4,2,1"
    ":ts_periodicity=4:ts_layer_id=0,2,1,2:ts_layering_mode=3",
}
"""Three layers of time, as in a call over WebRTC."""

slots = st.integers(0, ALL_SLOTS)
frames = st.builds(Vp9Frame, slots, slots, st.booleans(), st.none())
packets = st.lists(st.tuples(st.lists(frames, max_size=2), st.booleans()), max_size=12)


def headers_of(clip: bytes) -> list[list[Vp9Frame]]:
    with av.open(io.BytesIO(clip)) as container:
        return [vp9_frames(bytes(packet)) for packet in container.demux(video=0) if packet.size]


def used(sent: list[list[Vp9Frame]], wanted: int) -> set[int]:
    """Packets that the pictures of packet ``wanted`` are made of, from writers to readers."""
    wrote: dict[int, frozenset[int]] = {slot: frozenset() for slot in range(8)}
    state: frozenset[int] = frozenset()
    for number, packet in enumerate(sent):
        sources = frozenset({number})
        if not packet:  # not readable: it may take anything
            sources = sources.union(state, *wrote.values())
            wrote, state = dict.fromkeys(wrote, sources), sources
        for frame in packet:
            sources |= frozenset[int]().union(
                *(wrote[slot] for slot in range(8) if frame.refers >> slot & 1)
            )
            if not frame.alone:
                sources |= state
            wrote |= {slot: sources for slot in range(8) if frame.refreshes >> slot & 1}
            state = sources
        if number == wanted:
            return set(sources)
    raise AssertionError


@given(packets)
def test_what_a_wanted_packet_is_made_of_is_sent(drawn: list[tuple[list[Vp9Frame], bool]]) -> None:
    clip, wanted = [packet for packet, _ in drawn], [asked for _, asked in drawn]
    found = needed_packets(clip, wanted)
    for number, asked in enumerate(wanted):
        if asked:
            assert all(found[source] for source in used(clip, number))


def test_layers_of_time_are_left_out() -> None:
    headers = headers_of(make_clip(codec="libvpx-vp9", container="webm", frames=17, options=LAYERS))
    found = needed_packets(headers, [number == 16 for number in range(17)])
    assert [number for number, sent in enumerate(found) if sent] == list(range(0, 17, 2))


@pytest.mark.parametrize("alt_ref", [0, 1])
def test_a_clip_that_goes_on_from_each_frame_is_sent_whole(alt_ref: int) -> None:
    options = {"g": "60", "auto-alt-ref": str(alt_ref), "lag-in-frames": "16", "cpu-used": "8"}
    headers = headers_of(
        make_clip(codec="libvpx-vp9", container="webm", frames=20, options=options)
    )
    count = len(headers)
    assert all(needed_packets(headers, [number == count - 1 for number in range(count)]))


def test_a_header_that_is_cut_keeps_what_is_before_it() -> None:
    key, inter = Vp9Frame(ALL_SLOTS, 0, True, (8, 8)), Vp9Frame(0, 1, True, None)
    wanted = [False, False, False, True]
    assert needed_packets([[key], [inter], [inter], [inter]], wanted) == [True, False, False, True]
    assert needed_packets([[key], [inter], [], [inter]], wanted) == [True, True, True, True]
    with pytest.raises(IndexError):
        vp9_frames(b"\x84")
