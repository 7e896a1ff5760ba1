"""Call a function and keep what it returned or raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from zephon_mm.backends.base import Into

R = TypeVar("R")

__all__ = ["call"]


def call(
    fn: Callable[..., R], item: Any, into: Into = None
) -> tuple[R | None, BaseException | None]:
    """``(fn(item), None)``, or ``(None, error)`` whatever it raised; ``into`` is for ``fn``, too.

    A ``StopIteration`` would end the stream of whoever takes the result, as if the data had come
    to its end: it becomes a ``RuntimeError``, as in a generator (PEP 479).
    """
    try:
        return fn(item) if into is None else fn(item, into=into), None
    except StopIteration as error:
        wrapped = RuntimeError(f"{fn!r} raised StopIteration, which would end the stream")
        wrapped.__cause__ = error
        return None, wrapped
    except BaseException as error:
        return None, error
