"""`ExecutionConfig`: how the work is done."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from .checks import check, instance, positive, text, whole

_DEVICE = re.compile(r"cpu|cuda(:\d+)?|auto")


@dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """How the work is done. No field here changes one byte of any batch.

    Args:
        backend: ``threads`` of this process; worker ``processes``, for what Python code of yours
            or the trainer's keeps the interpreter busy with, and so that a crash of a library ends
            a worker and not the run (Linux); workers on a cluster of ``ray``, whose CPUs help those
            of the trainer's host; or ``serial``, in the caller's thread.
        workers: worker threads, processes or Ray actors; None: one a CPU of this host, at most 8.
        ray_address: of the cluster for ``ray``, as ``ray.init`` takes it: ``host:port``, ``auto``
            for the one that `ray start` started here, ``local`` for one of this run's own. None:
            the connection that the program has made, or what ``RAY_ADDRESS`` names, or ``local``.
        prefetch: finished steps that may wait for the trainer.
        memory_budget: bytes of media and pixels in flight; an item above it goes alone.
        decoder: the video library; it must give pixels of the run's ``pixel_class``. ``auto`` is
            the class's own: ``pyav`` for ``planes-v1``. ``torchcodec`` gives the same planes of the
            clips that ``index --verify`` found clean, and leaves the others to ``pyav``.
        image_decoder: ``pillow``, or ``torchvision`` for the pictures in which it is equal.
        device: where pixels are made and batches lie: ``cpu``; ``cuda`` or ``cuda:1`` (clips are
            decoded by NVDEC and cut into patches on the GPU; clips that it doesn't decode, those
            not marked clean and pictures are made on the CPU, byte for byte the same, and sent
            there); or ``auto``: a GPU if all that it takes is there, as the log says. With a
            ``decoder`` named, that one decodes, on the CPU. Needs ``threads`` or ``serial``: what
            lies on a GPU does not leave its process.
        surface_budget: bytes on the GPU for frames of clips that are being decoded; a clip above
            it goes alone. Patches that wait are counted by ``memory_budget``.
        cache_dir: where indices of remote shards go, those of shards whose own folder can't be
            written, and the blocks of ``storage_cache_bytes``; None: the user's cache folder.
        read_retries: tries after a failed read, before the failure is raised.
        storage_options: of the stores that shards lie in, as obstore names them, such as
            ``{"region": "eu-west-1"}`` or ``{"endpoint": "http://minio:9000"}``. What is not here
            comes from the environment, as the store's own tools have it.
        storage_timeout: seconds for which a store may answer nothing before that counts as a
            failed read; a whole request may take ten times that.
        storage_cache_bytes: bytes of remote shards that all runs of this host together keep in
            ``cache_dir``; 0: none.
        verify_reads: check the checksum of every member read against the index.
        micro_batch: most rows a batch; a step's rows are handed out in several. None: in one.
        reject_log: a file that gets a JSON line for each sample that gives no document and for each
            damaged medium.
        digest_log: a folder that gets a file a rank with digests of every row trained on, for
            ``zephon-mm verify``; a run that goes on adds to it. None: no log.
    """

    backend: Literal["serial", "threads", "processes", "ray"] = "threads"
    workers: int | None = None
    ray_address: str | None = None
    prefetch: int = 2
    memory_budget: int = 2 << 30
    decoder: Literal["auto", "pyav", "torchcodec", "decord", "dali-cpu", "dali-gpu"] = "auto"
    image_decoder: Literal["pillow", "torchvision"] = "pillow"
    device: str = "cpu"
    surface_budget: int = 1 << 30
    cache_dir: str | None = None
    read_retries: int = 3
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    storage_timeout: float = 30.0
    storage_cache_bytes: int = 0
    verify_reads: bool = True
    micro_batch: int | None = None
    reject_log: str | None = None
    digest_log: str | None = None

    def __post_init__(self) -> None:
        check(
            self.backend in ("serial", "threads", "processes", "ray"),
            f"backend={self.backend!r} must be serial, threads, processes or ray",
        )
        whole("workers", self.workers, optional=True)
        if self.ray_address is not None:
            text("ray_address", self.ray_address)
            check(
                "://" not in self.ray_address,
                f"ray_address={self.ray_address!r}: Ray Client is not supported; run the trainer "
                "on a node of the cluster, and give host:port, 'auto' or 'local'",
            )
        whole("prefetch", self.prefetch)
        whole("memory_budget", self.memory_budget)
        check(
            self.decoder in ("auto", "pyav", "torchcodec", "decord", "dali-cpu", "dali-gpu"),
            f"decoder={self.decoder!r} must be auto, pyav, torchcodec, decord, dali-cpu or "
            "dali-gpu",
        )
        check(
            self.image_decoder in ("pillow", "torchvision"),
            f"image_decoder={self.image_decoder!r} must be pillow or torchvision",
        )
        check(
            isinstance(self.device, str) and _DEVICE.fullmatch(self.device) is not None,
            f"device={self.device!r} must be cpu, cuda, cuda:N (such as cuda:0) or auto",
        )
        check(
            self.device == "cpu" or self.backend in ("serial", "threads"),
            f"device={self.device!r} and backend={self.backend!r}: what lies on a GPU can't leave "
            "its process; use backend='threads' or device='cpu'",
        )
        whole("surface_budget", self.surface_budget)
        if self.cache_dir is not None:
            text("cache_dir", self.cache_dir)
        whole("micro_batch", self.micro_batch, optional=True)
        if self.reject_log is not None:
            text("reject_log", self.reject_log)
        if self.digest_log is not None:
            text("digest_log", self.digest_log)
        whole("read_retries", self.read_retries, 0)
        check(
            isinstance(self.storage_options, Mapping)
            and all(
                isinstance(word, str) for pair in self.storage_options.items() for word in pair
            ),
            "storage_options must map names to texts, such as {'region': 'eu-west-1'}",
        )
        positive("storage_timeout", self.storage_timeout)
        whole("storage_cache_bytes", self.storage_cache_bytes, 0)
        instance("verify_reads", self.verify_reads, bool)
