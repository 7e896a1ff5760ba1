"""`Filter`: which samples of a source are used, by a few named limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from .checks import check, text

Limits = tuple[float | None, float | None]
"""The least and the most, both allowed; None: no limit on that side."""

LIMITS = (
    "width", "height", "aspect", "duration", "fps", "frames", "text_length", "images", "videos",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which samples of a source are used; the others are counted as *filtered*.

    A limit is ``[least, most]``, both allowed, and null where there is none. Limits on media hold
    for every picture and clip that the sample's document shows, by their headers: nothing is
    decoded.

    Args:
        width, height: of pictures and clips, in pixels as shown.
        aspect: width over height.
        duration: of clips, in seconds (of the whole file, whatever window of it is shown).
        fps: of clips, frames a second in the file.
        frames: of clips, in the file.
        text_length: characters of all of the document's text, of conversations every turn's;
            template text is not counted.
        images, videos: how many the document has.
        keys: patterns as in a shell (``cc3m/*``, ``*[02468]``), of which a key must match one.
        not_keys: patterns of which it must match none.
        function: your own, as ``package.module:function``, called last with a `Candidate`: false
            filters the sample. It must depend on its argument only; its code is not part of the
            run's fingerprint.
    """

    width: Limits | None = None
    height: Limits | None = None
    aspect: Limits | None = None
    duration: Limits | None = None
    fps: Limits | None = None
    frames: Limits | None = None
    text_length: Limits | None = None
    images: Limits | None = None
    videos: Limits | None = None
    keys: tuple[str, ...] = ()
    not_keys: tuple[str, ...] = ()
    function: str | None = None

    def __post_init__(self) -> None:
        for name in LIMITS:
            object.__setattr__(self, name, _limits(f"filter.{name}", getattr(self, name)))
        for name in ("keys", "not_keys"):
            given = getattr(self, name)
            check(
                isinstance(given, list | tuple) and all(isinstance(p, str) and p for p in given),
                f"filter.{name}={given!r}: must be a list of patterns, none empty",
            )
            object.__setattr__(self, name, tuple(given))
        if self.function is not None:
            text("filter.function", self.function)
            check(
                all(self.function.partition(":")),
                f"filter.function={self.function!r}: must be 'package.module:function'",
            )

    @property
    def active(self) -> bool:
        """Whether it filters anything."""
        return any(getattr(self, entry.name) for entry in fields(self))


def _limits(name: str, value: Any) -> Limits | None:
    if value is None:
        return None
    check(
        isinstance(value, list | tuple) and len(value) == 2,
        f"{name}={value!r}: must be [least, most], null where there is no limit",
    )
    for bound in value:
        number = isinstance(bound, int | float) and not isinstance(bound, bool)
        check(
            bound is None or (number and math.isfinite(bound) and bound >= 0),
            f"{name}={value!r}: a limit must be a number of 0 or more, or null",
        )
    least, most = value
    check(least is not None or most is not None, f"{name}={value!r}: it limits nothing")
    check(
        least is None or most is None or least <= most,
        f"{name}={value!r}: the least is above the most, so no sample would be left",
    )
    return None if least is None else float(least), None if most is None else float(most)
