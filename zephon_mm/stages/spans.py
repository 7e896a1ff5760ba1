"""The assistant's texts in a conversation that was rendered with marks around them."""

from __future__ import annotations

from collections.abc import Sequence

from .messages import Marks, Span

Interval = tuple[int, int]


def between(marked: str, marks: Marks) -> list[Interval] | None:
    """What stands between start and end marks; None unless they come in turns."""
    found: list[Interval] = []
    stop = -1
    for _ in range(marked.count(marks.start)):
        start = marked.find(marks.start, stop + 1)
        other, stop = marked.find(marks.end, stop + 1), marked.find(marks.end, start)
        if stop < 0 or other != stop or marked.find(marks.start, start + 1, stop) >= 0:
            return None
        found.append((start, stop))
    return found if marked.find(marks.end, stop + 1) < 0 else None


def matched(
    marked: str, found: Sequence[Interval], spans: Sequence[Span], marks: Marks
) -> list[Interval] | Span:
    """Where each span is, if all are found once and in order; else the first that isn't.

    The name of a call that is written again later, as Gemma 4's templates do beside what the tool
    answers, is none of the assistant's: calls are numbered, so it can't be taken for another one.
    """
    places: list[Interval] = []
    for start, stop in found:
        text = marked[start + 1 : stop]
        number = len(text) - len(text.lstrip(marks.cut))
        wanted = spans[len(places)] if len(places) < len(spans) else None
        if wanted and (wanted.number, wanted.text) == (number, marks.without(text)):
            places.append((start, stop))
        elif not any(number and span.number == number for span in spans[: len(places)]):
            return wanted or spans[-1]
    return places if len(places) == len(spans) else spans[len(places)]


def holds(marked: str, intervals: Sequence[Interval], texts: Sequence[str], marks: Marks) -> bool:
    """Whether what stands in the intervals holds all of the texts."""
    inside = "\0".join(marks.without(marked[start:stop]) for start, stop in intervals)
    return all(text in inside for text in texts)
