"""What all ranks of a run share: the opened sources, the plan, the model family, the stages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..backends import Backend
from ..batch import Batch
from ..collate import PackedRow, collate
from ..config import DataConfig, ExecutionConfig, Source
from ..decoders import REFERENCE, decoder_for, load_decoder, surface_decoder_for
from ..device import DeviceStage
from ..formats import AUTO, check_options, load_format
from ..models import ModelFamily, Tokenizer, build_family, check_model, load_tokenizer
from ..plan import Plan, SourceShape
from ..sample import Rejected, SampleRef
from ..shards import Access, Manifest, ShardDone, ShardReader, open_source
from ..shards.access import REMOTE_RETRY
from ..stages.materialise import Materialiser
from ..stages.measure import Measurer
from ..state import Identity, identity
from .auto import resolve_formats
from .lane import LONG_BLOCK, Lane
from .media_tasks import MediaTasks
from .progress import Bar

_log = logging.getLogger("zephon_mm")

Progress = Callable[[str, ShardDone], None]

MAX_AHEAD_BYTES = 128 << 20
"""Of remote shards, fetched before they are read; less where the memory budget is small."""

_HERE = ("serial", "threads")
"""Backends that read in this process, which can fetch remote bytes ahead of them."""

END_TOKENS = ("<|endoftext|>", "<|im_end|>", "<|eot_id|>", "</s>")


@dataclass(frozen=True)
class Run:
    """A data config, opened: everything that is a function of it and of the shards' bytes.

    Attributes:
        config: the data config, ``format="auto"`` replaced by the format that was found.
        chosen_formats: for each source of which that was done, what was taken and why.
    """

    config: DataConfig
    chosen_formats: Mapping[str, str]
    manifests: tuple[Manifest, ...]
    plan: Plan
    reader: ShardReader
    tokenizer: Tokenizer
    family: ModelFamily
    identity: Identity
    measure: Measurer
    materialise: Materialiser
    device: DeviceStage | None = None

    def lane(
        self,
        number: int,
        backend: Backend,
        *,
        window: int = 1,
        block: int = LONG_BLOCK,
        on_rejected: Callable[[Rejected], None] = lambda rejected: None,
    ) -> Lane:
        """A lane at the start of its row."""
        here = backend.name in _HERE
        return Lane(
            number,
            config=self.config,
            plan=self.plan,
            measure=self.measure,
            backend=backend,
            relayout=self.family.relayout,
            end_ids=self.end_ids,
            on_rejected=on_rejected,
            name=self._name,
            window=window,
            block=block,
            announce=self.measure.announce if here else lambda refs: None,
        )

    def media(self, backend: Backend, workers: int = 0, budget: int = 0) -> MediaTasks:
        """What decodes the media of steps, see `MediaTasks`."""
        make = self.materialise
        columns = self.family.patches.columns if self.device is None else 0
        return MediaTasks(backend, make, make.task_bytes, workers, budget, columns)

    def collate(
        self, rows: Sequence[PackedRow], step: int, slots: Sequence[int], length: int
    ) -> Batch:
        """Rows of a step as a batch, see `collate.collate`; on the run's device, if it has one."""
        batch = collate(
            rows,
            family=self.family,
            sequence_length=length,
            pad_id=self.tokenizer.pad_id,
            step=step,
            slots=slots,
            source_ids=[source.id for source in self.config.sources],
        )
        return batch if self.device is None else self.device.upload(batch)

    def _name(self, ref: SampleRef) -> tuple[str, str]:
        index = self.reader.index(ref.source, ref.shard)
        return index.shard, index.key(ref.sample)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a document, which truncating keeps."""
        known = [self.tokenizer.token_id(t) for t in END_TOKENS if self.tokenizer.has_token(t)]
        return frozenset([self.tokenizer.eos_id, *known])


def _open_source(source: Source, execution: ExecutionConfig, progress: Progress | None) -> Manifest:
    from ..media.probe import probe_member  # Pillow, with it

    with Bar(f"indexing {source.id}") as bar:

        def done(shard: ShardDone) -> None:
            if progress is None:
                bar.advance(shard.num_shards)
            else:
                progress(source.id, shard)

        return open_source(
            source,
            cache_dir=execution.cache_dir,
            probe=probe_member,
            progress=done,
            access=access_of(execution),
        )


def access_of(execution: ExecutionConfig) -> Access:
    """How remote shards are reached."""
    return Access(
        options=tuple(sorted(execution.storage_options.items())),
        timeout_seconds=execution.storage_timeout,
        retry=replace(REMOTE_RETRY, retries=execution.read_retries),
        cache_dir=execution.cache_dir,
        cache_bytes=execution.storage_cache_bytes,
    )


def open_run(
    config: DataConfig,
    execution: ExecutionConfig,
    progress: Progress | None = None,
    device: DeviceStage | None = None,
) -> Run:
    """Open tokenizer and sources (indexing what is not indexed yet), and make the plan.

    Args:
        config: the data config.
        execution: where indices go, and how reads are retried.
        progress: called with a source's id for each shard whose index is there; None: a bar.
        device: makes clips and takes batches; None: they are made on the CPU and stay there.

    Raises:
        ConfigError: a path names nothing, the tokenizer is missing, every source is empty, the
            decoder gives pixels of another class.
        MissingDependencyError: the decoder's library is not installed.
        ShardIndexError: a shard is broken, or its index is stale.
    """
    check_model(config.model)  # names first: they cost nothing to look at
    decoder = decoder_for(config.pixel_class, execution.decoder)
    if decoder != REFERENCE and decoder != surface_decoder_for(config.pixel_class):
        _log.info("clips are decoded by %s", load_decoder(decoder).fingerprint)
    for source in config.sources:
        if source.format != AUTO:
            load_format(source.format)
            check_options(source.format, source.options)
    tokenizer = load_tokenizer(config.tokenizer)
    family = build_family(config, tokenizer)
    manifests = tuple(_open_source(source, execution, progress) for source in config.sources)
    reader = ShardReader(
        manifests,
        cache_dir=execution.cache_dir,
        read_retries=execution.read_retries,
        verify_reads=execution.verify_reads,
        max_ahead_bytes=min(MAX_AHEAD_BYTES, execution.memory_budget // 8),
        access=access_of(execution),
    )
    config, chosen = resolve_formats(config, manifests, reader)
    plan = Plan(
        config, [SourceShape(manifest.num_samples, manifest.max_chunk) for manifest in manifests]
    )
    for name in plan.empty_sources:
        _log.warning("source %r has no samples; the others share its weight", name)
    digests = {
        source.id: manifest.digest.hex()
        for source, manifest in zip(config.sources, manifests, strict=True)
    }
    return Run(
        config=config,
        chosen_formats=chosen,
        manifests=manifests,
        plan=plan,
        reader=reader,
        tokenizer=tokenizer,
        family=family,
        identity=identity(
            config,
            source_digests=digests,
            parts={
                "tokenizer": tokenizer.digest.hex(),
                **{f"family.{name}": value for name, value in family.settings().items()},
            },
        ),
        measure=Measurer(config, reader, tokenizer, family),
        materialise=Materialiser(
            reader,
            family,
            decoder=decoder,
            image_decoder=execution.image_decoder,
            announce=execution.backend in _HERE,
            device=device,
        ),
        device=device,
    )
