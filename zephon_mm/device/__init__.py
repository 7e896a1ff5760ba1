"""A run's GPU: what it takes, clips as patches on it, batches handed to the trainer on it."""

from __future__ import annotations

from .choice import open_device
from .stage import Arrival, DeviceStage

__all__ = ["Arrival", "DeviceStage", "open_device"]
