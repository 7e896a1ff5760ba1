"""The two configs (C1): what decides the batches, and what must not.

``DataConfig`` decides order and content, byte by byte, and is fingerprinted. ``ExecutionConfig``
says how the work is done and changes no batch. Both are frozen and checked when they are made.
"""

from .data import DataConfig, ImageSizing, Packing, Source, Stop, VideoSampling
from .evaluation import evaluation
from .execution import ExecutionConfig
from .filter import Filter
from .reading import load_yaml
from .schedule import (
    Schedule,
    check_dp_size,
    lane_range,
    schedule_at,
    schedule_min,
    schedule_steps,
)

__all__ = [
    "DataConfig",
    "ExecutionConfig",
    "Filter",
    "ImageSizing",
    "Packing",
    "Schedule",
    "Source",
    "Stop",
    "VideoSampling",
    "check_dp_size",
    "evaluation",
    "lane_range",
    "load_yaml",
    "schedule_at",
    "schedule_min",
    "schedule_steps",
]
