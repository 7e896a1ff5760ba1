"""Configs from plain data and from YAML files."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from ..errors import ConfigError
from .data import SECTIONS, DataConfig, Source
from .execution import ExecutionConfig
from .filter import Filter

_Config = TypeVar("_Config", DataConfig, ExecutionConfig)


def load_yaml(path: str | Path) -> tuple[DataConfig, ExecutionConfig]:
    """Read both configs from one YAML file: DataConfig's fields, and a section ``execution``."""
    import yaml

    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: must be a mapping of DataConfig's fields")
    execution = data.pop("execution", None) or {}
    try:
        return read(DataConfig, data, ""), read(ExecutionConfig, execution, "execution.")
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def read(cls: type[_Config], data: Any, at: str) -> _Config:
    """One config from plain data; ``at`` goes before field names in messages."""
    from pydantic import TypeAdapter, ValidationError

    _check_names(cls, data, at)
    try:
        return TypeAdapter(cls).validate_python(dict(data))
    except ValidationError as error:
        lines = []
        for item in error.errors():
            name = (at + ".".join(str(part) for part in item["loc"])).removesuffix(".")
            message = item["msg"].removeprefix("Value error, ")
            if "filter" in item["loc"] and item["type"] in ("tuple_type", "missing", "too_long"):
                message = "must be [least, most], null where there is no limit"
            lines.append(f"{name}: {message}" if name else message)
        raise ConfigError("; ".join(lines)) from error


def _check_names(cls: type[Any], data: Any, at: str) -> None:
    """Raise ConfigError at the first field that the class, or one inside it, does not have."""
    if not isinstance(data, Mapping):
        where = at.removesuffix(".") or cls.__name__
        raise ConfigError(f"{where}={data!r}: must be a mapping of {cls.__name__}'s fields")
    known = [f.name for f in fields(cls)]
    for name in data:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 1)
            hint = f"did you mean {at + close[0]!r}?" if close else f"it has {', '.join(known)}"
            raise ConfigError(f"{cls.__name__} has no field {at + str(name)!r}; {hint}")
    for entry in fields(cls):
        value = data.get(entry.name)
        if isinstance(value, bool) and not isinstance(entry.default, bool):
            raise ConfigError(f"{at}{entry.name}={value!r}: takes no true or false")
    if cls is DataConfig:
        for name, kind in SECTIONS.items():
            if name in data and not isinstance(data[name], kind):
                _check_names(kind, data[name], f"{at}{name}.")
        sources = data.get("sources")
        for i, source in enumerate(sources if isinstance(sources, list | tuple) else ()):
            if not isinstance(source, Source):
                _check_names(Source, source, f"{at}sources.{i}.")
                chosen = source.get("filter")
                if isinstance(chosen, Mapping):
                    _check_names(Filter, chosen, f"{at}sources.{i}.filter.")
