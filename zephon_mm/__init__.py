"""zephon_mm: an elastic, deterministic loader for vision-language pre-training.

from zephon_mm import DataConfig, ExecutionConfig, Loader

loader = Loader(DataConfig.from_yaml("vlm.yaml"), dp_rank=0, dp_size=1)
for batch in loader:
    loss = model(**batch.model_inputs, use_cache=False).loss
    state = loader.state_dict()
"""

from .batch import Batch
from .config import (
    DataConfig,
    ExecutionConfig,
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
from .loader import Loader
from .state import merge_states

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "ConfigError",
    "DataConfig",
    "ExecutionConfig",
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
