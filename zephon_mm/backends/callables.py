"""Callables that worker processes hold: each is pickled once, and sent once to a worker.

An object whose class has ``one_a_worker = True`` (a reader with open files, say) is pickled on its
own and is one object in a worker, however many callables refer to it.

A callable that has ``get_ready()`` is unpickled, and that is called, once in the process that
workers are forked from, which then share what it loads. It must start no thread.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import threading
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from zephon_mm.backends import wire
from zephon_mm.errors import WorkerError

__all__ = ["Callables", "Message", "Needs", "Received", "unpack"]

_MOST: Final = 64
_OWN: Final = {"__main__", "__mp_main__", "builtins"}


class _Sent(NamedTuple):
    obj: Any  # kept, so that its id stays its own
    number: int
    pickle: bytes
    modules: frozenset[str]  # that unpickling imports, its parts' included
    parts: list[_Sent]  # what it refers to, and what these refer to
    needs: dict[tuple[str, ...], Needs]  # by the further modules that an item wants


class Needs(NamedTuple):
    """What is to be there when a worker is forked that shall run a callable.

    Attributes:
        modules: names of modules to import.
        objects: numbered pickles to hold, each after those it refers to; none if the callable has
            no ``get_ready``, or is of the main module, which only workers import.
    """

    modules: frozenset[str] = frozenset()
    objects: tuple[tuple[int, bytes], ...] = ()

    def keys(self) -> list[str | int]:
        """The modules' names and the objects' numbers."""
        return [*self.modules, *(number for number, _ in self.objects)]


class Message(NamedTuple):
    """What a worker must be told to do an item; the fields are those of ``wire.Task``."""

    objects: list[tuple[int, bytes]]
    forgotten: list[int]
    fn: int
    item: bytes


class Callables:
    """In the parent: numbered pickles, shared by the workers of a backend. Thread-safe.

    At most 64 are kept; callables made on the fly push all others out, to be sent again, but for
    those that workers share (``Needs.objects``).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}
        self._shared: set[int] = set()  # ids, as the keys of ``_sent``
        self._made = 0

    def message(self, fn: Any, item: Any, known: set[int], where: str) -> Message:
        """The call ``fn(item)``, for a worker that knows the numbers ``known``.

        What is returned must be sent: ``known`` is brought up to date.

        Args:
            fn: the callable.
            item: its argument.
            known: the numbers of the objects that the worker has.
            where: the kind of worker, for the message of the error.

        Raises:
            WorkerError: callable or item can't be pickled; ``known`` is as it was.
        """
        try:
            data = pickle.dumps(item, wire.PROTOCOL)
            with self._lock:
                return self._message(fn, data, known)
        except Exception as error:
            raise WorkerError(
                f"{fn!r} or its item can't be sent to {where} ({type(error).__name__}: {error}), "
                "which takes functions of importable modules and items that pickle; use "
                "backend='threads' for others"
            ) from error

    def needs(self, fn: Any, more: tuple[str, ...] = ()) -> Needs:
        """What is to be there before a worker is forked that runs ``fn``: one object, each time.

        Args:
            fn: the callable.
            more: modules that the item at hand needs besides.

        Raises:
            Exception: whatever pickle raises for ``fn``.
        """
        with self._lock:
            sent = self._number_anew(fn)
            found = sent.needs.get(more)
            if found is None:
                found = sent.needs[more] = self._needs(fn, sent, more)
            return found

    def _needs(self, fn: Any, sent: _Sent, more: tuple[str, ...]) -> Needs:
        modules, whole = sent.modules.union(more), [*sent.parts, sent]
        if not hasattr(fn, "get_ready") or any(b"__main__" in one.pickle for one in whole):
            return Needs(modules)
        self._shared.update(id(one.obj) for one in whole)
        return Needs(modules, tuple((one.number, one.pickle) for one in whole))

    def _message(self, fn: Any, data: bytes, known: set[int]) -> Message:
        sent = self._number_anew(fn)
        news = [(s.number, s.pickle) for s in [*sent.parts, sent] if s.number not in known]
        forgotten: list[int] = []
        if len(known) > _MOST:
            forgotten = sorted(known - {s.number for s in self._sent.values()})
        known.update(number for number, _ in news)
        known.difference_update(forgotten)
        return Message(news, forgotten, sent.number, data)

    def _number_anew(self, fn: Any) -> _Sent:
        if id(fn) not in self._sent and len(self._sent) >= _MOST:
            self._sent = {key: sent for key, sent in self._sent.items() if key in self._shared}
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
            found = _Sent(obj, self._made, out.getvalue(), frozenset(modules), parts, {})
            self._sent[id(obj)] = found
        return found


class _Pickler(pickle.Pickler):
    def __init__(self, out: io.BytesIO, top: Any, number: Any) -> None:
        super().__init__(out, wire.PROTOCOL)
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


def unpack(
    fn: Any, body: bytes, arrays: Sequence[Any], counts: Any, where: str, into: Sequence[Any] = ()
) -> tuple[Any, BaseException | None]:
    """In the parent: what ``fn`` returned or raised in a worker; its counts are added here.

    Args:
        fn: the callable.
        body: the pickle of (value, error).
        arrays: what the pickle leaves out.
        counts: what the callable's ``take_counts`` gave there; None: it has none.
        where: the kind of worker, for the message of an error.
        into: the arrays that it wrote into.
    """
    if counts is not None:
        fn.add_counts(counts)
    try:
        outcome: tuple[Any, BaseException | None] = wire.load(body, arrays, into)
    except Exception as problem:
        return None, WorkerError(f"what {where} returned can't be unpickled here ({problem})")
    return outcome


class Received:
    """In a worker, or in the process that forks it: the objects by number.

    Args:
        import_main: called before the first pickle that names ``__main__``, which is not the
            parent's until then.
    """

    def __init__(self, import_main: Any) -> None:
        self._import_main = import_main
        self._objects: dict[int, Any] = {}

    def add(self, number: int, data: bytes) -> None:
        """Unpickle an object, if it is new; the error of that is the answer to every call of it."""
        if number in self._objects:
            return
        try:
            self._objects[number] = self.load(data)
        except Exception as error:
            self._objects[number] = _Failed(error)

    def hold(self, objects: Sequence[tuple[int, bytes]]) -> bool:
        """Unpickle objects of which the last has ``get_ready``, and call it; whether they are here.

        What goes wrong is for a worker to meet again, and to say.
        """
        before = set(self._objects)
        try:
            for number, data in objects:
                if number not in before:
                    self._objects[number] = self.load(data)
        except BaseException:  # also the exit of a module that is imported
            self._objects = {number: self._objects[number] for number in before}
            return False
        with contextlib.suppress(BaseException):
            self._objects[objects[-1][0]].get_ready()
        return True

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
    error: Exception


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO, received: Received) -> None:
        super().__init__(data)
        self._received = received

    def persistent_load(self, number: Any) -> Any:
        return self._received[number]
