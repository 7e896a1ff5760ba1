"""Media of a step as tasks for a backend: a few neighbouring pictures a task, a clip a task.

What is put together changes who decodes and when, never what comes of it. A backend whose workers
can write to this process's memory decodes all media of a kind and step into one array, whose rows a
batch then takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..backends import Backend, Ticket
from ..errors import WorkerDiedError
from ..sample import MeasuredDocument, MediaSpan
from ..stages.materialise import MediaResult, MediaTask

MOST = 8
"""Pictures that a task decodes at most: handing over one costs up to a tenth of decoding it."""

MOST_BYTES = 32 << 20
"""Of their memory, where the budget is large; a picture that needs more is a task of its own."""

_SHARES = 4  # tasks a worker, at least, into which a step's pictures and the budget are divided


class Bundle(NamedTuple):
    """Media that one task makes, of the documents ``of``, one each."""

    tasks: list[MediaTask]
    of: list[MeasuredDocument]
    ticket: Ticket[list[MediaResult]]


@dataclass(frozen=True, slots=True)
class MediaTasks:
    """Submits media and hands out what came of them.

    Args:
        backend: where media are decoded.
        materialise: decodes some, in order.
        task_bytes: memory that one medium needs until its step is put together.
        workers: of the backend, among which a step's pictures are shared out; 0: it has none, and
            each medium is a task.
        budget: bytes of media in flight on the backend, among which tasks of several have a share.
        columns: of a patch of every medium; 0: each comes in an array of its own.
    """

    backend: Backend
    materialise: Callable[..., list[MediaResult]]
    task_bytes: Callable[[MediaTask], int]
    workers: int = 0
    budget: int = 0
    columns: int = 0

    def begin(self, wanted: Sequence[tuple[MediaTask, MeasuredDocument]]) -> tuple[Bundle, ...]:
        """Submit the media of a step, each with its document."""
        rows = self._rows([task.span for task, _ in wanted])
        return tuple(self._submit(media, cost, rows) for media, cost in self._bundled(wanted))

    def _rows(self, spans: Sequence[MediaSpan]) -> Iterator[NDArray[np.uint8]] | None:
        """Rows for each medium, of one array a kind, in order; None: there are none."""
        if not self.columns:
            return None
        total: dict[str, int] = {span.kind: 0 for span in spans}
        for span in spans:
            total[span.kind] += span.num_patches
        found = {kind: self.backend.empty((n, self.columns)) for kind, n in total.items()}
        arrays = {kind: array for kind, array in found.items() if array is not None}
        return _cut(arrays, spans) if len(arrays) == len(found) else None

    def _bundled(
        self, wanted: Sequence[tuple[MediaTask, MeasuredDocument]]
    ) -> Iterator[tuple[list[tuple[MediaTask, MeasuredDocument]], int]]:
        shares = _SHARES * self.workers
        most, most_bytes = 1, MOST_BYTES
        if shares:
            most = min(MOST, len(wanted) // shares)
            most_bytes = min(MOST_BYTES, self.budget // shares)
        media: list[tuple[MediaTask, MeasuredDocument]] = []
        total = 0
        for task, document in wanted:
            cost = self.task_bytes(task)
            alone = "video" in (task.span.kind, *(task.span.kind for task, _ in media[:1]))
            if media and (alone or len(media) >= most or total + cost > most_bytes):
                yield media, total
                media, total = [], 0
            media.append((task, document))
            total += cost
        if media:
            yield media, total

    def _submit(
        self,
        media: Iterable[tuple[MediaTask, MeasuredDocument]],
        cost: int,
        rows: Iterator[NDArray[np.uint8]] | None = None,
    ) -> Bundle:
        tasks, documents = map(list, zip(*media, strict=True))
        into = None if rows is None else [next(rows) for _ in tasks]
        ticket = self.backend.submit(self.materialise, tuple(tasks), cost_bytes=cost, into=into)
        return Bundle(tasks, documents, ticket)

    def results(self, bundles: Sequence[Bundle]) -> Iterator[MediaResult]:
        """The media in order.

        Raises what decoding raises. If worker processes died of one, the error names its sample:
        of several, each is tried again alone.
        """
        for bundle in bundles:
            try:
                yield from bundle.ticket.result()
            except WorkerDiedError as error:
                if len(bundle.tasks) == 1:
                    (document,) = bundle.of
                    raise error.of_sample(document.shard, document.key) from None
                for media in zip(bundle.tasks, bundle.of, strict=True):
                    yield from self.results([self._submit([media], self.task_bytes(media[0]))])


def _cut(
    arrays: Mapping[str, NDArray[np.uint8]], spans: Sequence[MediaSpan]
) -> Iterator[NDArray[np.uint8]]:
    filled = dict.fromkeys(arrays, 0)
    for span in spans:
        start = filled[span.kind]
        filled[span.kind] = stop = start + span.num_patches
        yield arrays[span.kind][start:stop]
