"""Callables that worker processes hold: each is pickled once, and sent once to a worker.

An object whose class has ``one_a_worker = True`` (a reader with open files, say) is pickled on its
own and is one object in a worker, however many callables refer to it.
"""

from __future__ import annotations

import io
import pickle
import threading
from typing import Any, Final, NamedTuple

__all__ = ["Callables", "Received"]

_PROTOCOL: Final = 5
_MOST: Final = 64
_OWN: Final = {"__main__", "__mp_main__", "builtins"}


class _Sent(NamedTuple):
    obj: Any  # kept, so that its id stays its own
    number: int
    pickle: bytes
    modules: frozenset[str]  # that unpickling imports, its parts' included
    parts: list[_Sent]  # what it refers to, and what these refer to


class Callables:
    """In the parent: numbered pickles, shared by the workers of a backend. Thread-safe.

    At most 64 are kept; callables made on the fly push all others out, to be sent again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}
        self._made = 0

    def task(self, fn: Any, known: set[int]) -> tuple[int, list[tuple[int, bytes]], list[int]]:
        """What a worker must be told to call ``fn``; ``known``, its numbers, is brought up to date.

        Returns:
            The number of ``fn``, the numbered pickles that the worker lacks, in order, and the
            numbers that it may forget.

        Raises:
            Exception: whatever pickle raises for ``fn``.
        """
        with self._lock:
            sent = self._number_anew(fn)
            news = [(s.number, s.pickle) for s in [*sent.parts, sent] if s.number not in known]
            forgotten: list[int] = []
            if len(known) > _MOST:
                forgotten = sorted(known - {s.number for s in self._sent.values()})
            known.update(number for number, _ in news)
            known.difference_update(forgotten)
            return sent.number, news, forgotten

    def modules(self, fn: Any) -> frozenset[str]:
        """Names of the modules that unpickling ``fn`` imports; the main module is not among them.

        Raises:
            Exception: whatever pickle raises for ``fn``.
        """
        with self._lock:
            return self._number_anew(fn).modules

    def _number_anew(self, fn: Any) -> _Sent:
        if id(fn) not in self._sent and len(self._sent) >= _MOST:
            self._sent.clear()
        return self._number(fn)

    def _number(self, obj: Any) -> _Sent:
        found = self._sent.get(id(obj))
        if found is None:
            out = io.BytesIO()
            pickler = _Pickler(out, obj, self._number)
            pickler.dump(obj)
            self._made += 1
            parts = list(pickler.parts.values())
            modules = pickler.modules.union(*(part.modules for part in parts)) - _OWN
            found = _Sent(obj, self._made, out.getvalue(), frozenset(modules), parts)
            self._sent[id(obj)] = found
        return found


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, top: Any, number: Any) -> None:
        super().__init__(out, _PROTOCOL)
        self._top = top
        self._number = number
        self.parts: dict[int, _Sent] = {}
        self.modules: set[str] = set()

    def persistent_id(self, obj: Any) -> int | None:
        module = getattr(obj, "__module__", None)  # of a function, a class, an object's class
        if isinstance(module, str):
            self.modules.add(module)
        if obj is self._top or not getattr(type(obj), "one_a_worker", False):
            return None
        sent: _Sent = self._number(obj)
        for part in [*sent.parts, sent]:
            self.parts[part.number] = part
        return sent.number


class Received:
    """In a worker: the objects by number.

    Args:
        import_main: called before the first pickle that names ``__main__``, which is not the
            parent's until then.
    """

    def __init__(self, import_main: Any) -> None:
        self._import_main = import_main
        self._objects: dict[int, Any] = {}

    def add(self, number: int, data: bytes) -> None:
        """Unpickle an object; whatever that raises is the answer to every call of it."""
        try:
            self._objects[number] = self.load(data)
        except BaseException as error:  # also the exit of a script that had to be imported
            self._objects[number] = _Failed(error)

    def forget(self, number: int) -> None:
        """Let go of an object."""
        self._objects.pop(number, None)

    def __getitem__(self, number: int) -> Any:
        """The object, or the error of its unpickling, raised."""
        found = self._objects[number]
        if isinstance(found, _Failed):
            raise found.error
        return found

    def load(self, data: bytes) -> Any:
        """Unpickle; objects of their own are looked up by their numbers."""
        if b"__main__" in data and self._import_main is not None:
            self._import_main, import_main = None, self._import_main
            import_main()
        return _Unpickler(io.BytesIO(data), self).load()


class _Failed(NamedTuple):
    error: BaseException


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, received: Received) -> None:
        super().__init__(data)
        self._received = received

    def persistent_load(self, number: Any) -> Any:
        return self._received[number]
