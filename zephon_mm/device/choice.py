"""Which device a run's pixels are made on: what ``ExecutionConfig.device`` says, or what is there.

torch, Triton and torchcodec are imported only where a GPU is asked for.
"""

from __future__ import annotations

import logging

from ..config import ExecutionConfig
from ..decoders import decoder_for, load_surface_decoder, surface_decoder_for
from ..errors import ConfigError, MissingDependencyError
from .stage import DeviceStage

_log = logging.getLogger("zephon_mm")


def open_device(execution: ExecutionConfig, pixel_class: str) -> DeviceStage | None:
    """The run's GPU, ready for work; None: pixels are made on the CPU.

    ``auto`` takes a GPU if there is one and all that it takes is installed, and logs which it is.

    Raises:
        ConfigError: ``device`` names a GPU that isn't there; the class is made on a GPU only.
        MissingDependencyError: a library or a part of the driver is missing.
    """
    name = execution.device
    only_gpu = decoder_for(pixel_class, "auto") == surface_decoder_for(pixel_class)
    if name == "cpu":
        if only_gpu:
            raise ConfigError(
                f"pixel_class={pixel_class!r} is made on a GPU only, and device is 'cpu': set "
                "device='cuda', with backend='threads'"
            )
        return None
    if name != "auto" or only_gpu:
        return _open("cuda" if name == "auto" else name, execution, pixel_class)
    try:
        stage = _open("cuda", execution, pixel_class)
    except (ConfigError, MissingDependencyError) as error:
        _log.info("device='auto': pixels are made on the CPU: %s", error)
        return None
    _log.info("device='auto': pixels are made on %s", stage.device)
    return stage


def _open(name: str, execution: ExecutionConfig, pixel_class: str) -> DeviceStage:
    device = find_device(name)
    try:  # for clips, and for normalising whatever lies there
        from zephon_mm_kernels import triton as _  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(f"device={name!r}: {error}") from error
    decoder = None
    fitting = surface_decoder_for(pixel_class)
    if fitting is not None and execution.decoder in ("auto", fitting):
        decoder = load_surface_decoder(fitting, device)
        _log.info("clips are decoded by %s", decoder.fingerprint)
    return DeviceStage(device, decoder, surface_budget=execution.surface_budget)


def find_device(name: str) -> str:
    """A GPU with its number. Raises ConfigError, saying what is missing."""
    import torch

    if torch.version.cuda is None:
        raise ConfigError(
            f"device={name!r} needs torch with CUDA, and torch {torch.__version__} is a build "
            "without it: install torch from https://pytorch.org for your CUDA, or set device='cpu'"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={name!r} needs an NVIDIA GPU, and torch {torch.__version__} finds none: look "
            "at nvidia-smi (driver) and CUDA_VISIBLE_DEVICES, or set device='cpu' or 'auto'"
        )
    count = torch.cuda.device_count()
    number = int(name.partition(":")[2] or torch.cuda.current_device())
    if number >= count:
        raise ConfigError(
            f"device={name!r}: there {'is' if count == 1 else 'are'} {count} here, numbered from "
            f"cuda:0 to cuda:{count - 1}"
        )
    return f"cuda:{number}"
