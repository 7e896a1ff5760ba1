"""Bytes fetched ahead: whatever interrupts it, nobody waits for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from zephon_mm.shards.ahead import Expected, Neighbours
from zephon_mm.shards.background import Background
from zephon_mm.shards.index import Member, build_index
from zephon_mm.shards.sidecar import ShardIndex, write_sidecar

from .tars import pairs, tar_bytes

SHARD = (0, 0)


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> tuple[ShardIndex, bytes]:
    path = tmp_path_factory.mktemp("ahead") / "s.tar"
    path.write_bytes(tar_bytes(pairs(6)))
    return ShardIndex(
        str(path), write_sidecar(build_index(str(path)), str(path))
    ), path.read_bytes()


def in_time(work: Callable[[], object]) -> object:
    """What ``work`` returns; it fails if that doesn't come."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it hangs"
    return found[0]


def ended() -> None:
    """Wait for the threads that fetch ahead."""
    for thread in threading.enumerate():
        if thread.name == "zephon_mm-ahead":
            thread.join(20)


class Fetch:
    """Requests of a shard's bytes, which fail in the order given."""

    def __init__(self, data: bytes, *failures: BaseException) -> None:
        self.data, self.failures, self.asked = data, list(failures), 0
        self.go = threading.Event()

    def __call__(self, shard: tuple[int, int], start: int, length: int) -> bytes:
        self.go.wait(20)
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return self.data[start : start + length]


def members(index: ShardIndex) -> list[tuple[tuple[int, int, int], Member]]:
    return [((*SHARD, p), index.member(p)) for s in range(6) for p in index.members(s).values()]


def stored(data: bytes, member: Member) -> bytes:
    return data[member.offset :][: member.stored]


def test_an_interrupted_gather_can_be_repeated(shard: tuple[ShardIndex, bytes]) -> None:
    index, data = shard
    fetch = Fetch(data, KeyboardInterrupt())
    fetch.go.set()
    neighbours = Neighbours(fetch, 1 << 20)
    with pytest.raises(KeyboardInterrupt):
        neighbours.gather([(index, SHARD, 2)])
    in_time(lambda: (neighbours.gather([(index, SHARD, 2)]), True)[1])
    for place, member in members(index):
        assert neighbours.take(place) == stored(data, member)
    assert fetch.asked == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_leaves_nobody_waiting(shard: tuple[ShardIndex, bytes]) -> None:
    index, data = shard
    fetch = Fetch(data, SystemExit(), KeyboardInterrupt())
    expected = Expected(fetch, 1 << 20)
    places = members(index)
    for place, member in places[:2]:
        expected.expect(place, member)
    fetch.go.set()
    assert [in_time(lambda place=place: [expected.take(place)]) for place, _ in places[:2]] == [
        [None],
        [None],
    ]
    expected.expect(*places[2])
    assert in_time(lambda: [expected.take(places[2][0])]) in ([None], [stored(data, places[2][1])])
    expected.expect(*places[3])
    ended()
    assert expected._threads == 0
    assert expected.take(places[3][0]) == stored(data, places[3][1])


def test_a_failure_ends_fetching_ahead_until_more_is_expected(
    shard: tuple[ShardIndex, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    index, data = shard
    places = members(index)
    fetch = Fetch(data, *(OSError("reset") for _ in places))
    expected = Expected(fetch, 1 << 20)
    for place, member in places:
        expected.expect(place, member)
    fetch.go.set()
    with caplog.at_level(logging.WARNING):
        ended()
    assert 1 <= fetch.asked <= 8 < len(places)  # the threads' first, and no more
    for place, _ in places:
        assert in_time(lambda place=place: [expected.take(place)]) == [None]
    fetch.failures.clear()
    expected.expect(*places[0])
    assert in_time(lambda: expected.take(places[0][0])) == stored(data, places[0][1])
    assert caplog.text.count("fetching ahead failed") == 1


@pytest.mark.parametrize("most", [1, 8])
def test_calls_in_the_background_are_all_done(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr("zephon_mm.shards.background.MAX_THREADS", most)
    background, go, done = Background(), threading.Event(), []

    def work(number: int) -> None:
        go.wait(20)
        done.append(number)
        if number % 3 == 0:
            raise OSError("reset") if number % 2 else SystemExit

    for number in range(30):
        background.begin(lambda number=number: work(number))
    alive = [thread for thread in threading.enumerate() if thread.name == "zephon_mm-ahead"]
    assert len(alive) == most
    go.set()
    ended()
    assert sorted(done) == list(range(30)) and background._threads == 0
    go.clear()
    for number in range(20):
        background.begin(lambda number=number: work(number))
    background.clear()
    go.set()
    ended()
    assert len(done) <= 30 + most
