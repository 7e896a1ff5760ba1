"""Checks of single fields; each raises ConfigError naming the field, its value and the choices."""

from __future__ import annotations

import math

from ..errors import ConfigError


def check(condition: bool, message: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def positive(
    name: str, value: float | None, *, optional: bool = False, or_zero: bool = False
) -> None:
    """A number above 0; or None, if ``optional``; or 0, if ``or_zero``."""
    if value is None and optional:
        return
    known = isinstance(value, int | float) and not isinstance(value, bool)
    if not known or value is None or not (0 < value < math.inf or (or_zero and value == 0)):
        wanted = "0, or a number above it" if or_zero else "a number above 0"
        raise ConfigError(f"{name}={value!r}: must be {wanted}")


def whole(
    name: str,
    value: int | None,
    least: int = 1,
    most: float = math.inf,
    *,
    optional: bool = False,
) -> None:
    """A whole number from ``least`` to ``most``; or None, if ``optional``."""
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        span = f"{least} or more" if most == math.inf else f"from {least} to {most}"
        raise ConfigError(f"{name}={value!r}: must be a whole number, {span}")


def text(name: str, value: str) -> None:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{name}={value!r}: must be a text that is not empty")


def instance(name: str, value: object, kind: type) -> None:
    """A value of one class."""
    if not isinstance(value, kind):
        raise ConfigError(f"{name}={value!r}: must be a {kind.__name__}")


def pixel_budget(name: str, least: int | None, most: int | None) -> None:
    """Fewest and most pixels, each a whole number or None."""
    whole(f"{name}.min_pixels", least, optional=True)
    whole(f"{name}.max_pixels", most, optional=True)
    if least is not None and most is not None and least > most:
        raise ConfigError(f"{name}.min_pixels={least} is above {name}.max_pixels={most}")
