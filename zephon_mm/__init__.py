"""zephon_mm: an elastic, deterministic loader for vision-language pre-training.

from zephon_mm import DataConfig, ExecutionConfig, Loader

loader = Loader(DataConfig.from_yaml("vlm.yaml"), dp_rank=0, dp_size=1)
for batch in loader:
    loss = model(**batch.model_inputs, use_cache=False).loss
    state = loader.state_dict()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import (
    DataConfig,
    ExecutionConfig,
    Filter,
    ImageSizing,
    Packing,
    Source,
    Stop,
    VideoSampling,
)
from .errors import (
    ConfigError,
    MissingDependencyError,
    ShardIndexError,
    StateError,
    StorageError,
    ZephonError,
)
from .state import merge_states

if TYPE_CHECKING:
    from .batch import Batch
    from .loader import Loader

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load `Loader` or `Batch` when it is asked for.

    They bring torch: seconds that a command or an indexing process has no use for.
    """
    if name == "Loader":
        from .loader import Loader

        return Loader
    if name == "Batch":
        from .batch import Batch

        return Batch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Batch",
    "ConfigError",
    "DataConfig",
    "ExecutionConfig",
    "Filter",
    "ImageSizing",
    "Loader",
    "MissingDependencyError",
    "Packing",
    "ShardIndexError",
    "Source",
    "StateError",
    "Stop",
    "StorageError",
    "VideoSampling",
    "ZephonError",
    "merge_states",
]
