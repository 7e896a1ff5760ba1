"""The loader: wires plan, stages, sequencer, backend and state into an iterator of batches.

Nothing is decided here. What a step holds is a function of (DataConfig, step); which of its rows
come here is a function of (dp_rank, dp_size); the rest is execution.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from .backends import (
    Backend,
    ByteBudget,
    Direct,
    Feed,
    Prefetcher,
    SerialBackend,
    default_workers,
    open_backend,
)
from .batch import Batch
from .config import DataConfig, ExecutionConfig, check_dp_size, evaluation, lane_range
from .device import open_device
from .digests import DigestLog
from .distributed import Checkpoints, Place, Share, sum_over
from .errors import ConfigError, StateError
from .pipeline import (
    LaneSnapshot,
    RankSteps,
    Report,
    Restored,
    Step,
    block_of,
    loader_stats,
    no_documents,
    on_device,
    open_run,
    run_length,
)
from .sample import Rejected
from .state import LoaderState, check_changes, compare, fingerprint

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from .shards.reader import ReadCounts

RING = 8
"""Boundaries before the last one that ``state_dict(step=…)`` still knows."""


class Loader(Checkpoints):
    """An iterator over one rank's batches of a run, with state.

    ``for batch in loader`` goes on from where the loader stands: at step 0, after the last batch
    that was handed out, or where `load_state_dict` put it. Every step is the same whatever
    ``execution``, ``dp_size`` and earlier restores.

    Args:
        config: what decides the batches.
        execution: how they are made; None takes the defaults.
        dp_rank: this data-parallel rank; tensor-, pipeline- and context-parallel peers pass the
            same.
        dp_size: data-parallel ranks; must divide every ``global_batch``.
        mesh: instead of both, the data-parallel dimension of a mesh, as ``device_mesh["dp"]``.
        share: ``all``: each peer of a data-parallel rank loads its batches; ``leader``: one of them
            loads and broadcasts, and iterating is a collective of ``share_group``.
        share_group: these peers, as ``device_mesh["tp"]`` or a process group.
        mode: ``eval``: every sample once, unshuffled, a document a row, in the order of the shards;
            ``eval_packed``: the same with neighbours packed. See `config.evaluation`.

    Raises:
        ConfigError: a field is wrong, a path names nothing, ``dp_size`` does not divide the batch.
        ShardIndexError: a shard is broken, or is not what its index says.
    """

    def __init__(
        self,
        config: DataConfig,
        execution: ExecutionConfig | None = None,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        mesh: DeviceMesh | None = None,
        share: Literal["all", "leader"] = "all",
        share_group: dist.ProcessGroup | DeviceMesh | None = None,
        mode: Literal["train", "eval", "eval_packed"] = "train",
    ) -> None:
        if not isinstance(config, DataConfig):
            raise ConfigError(
                f"Loader takes a DataConfig, not {type(config).__name__}: "
                "DataConfig.from_yaml(path) reads one"
            )
        if mode not in ("train", "eval", "eval_packed"):
            raise ConfigError(f"mode={mode!r} must be one of train, eval, eval_packed")
        if mode != "train":
            config = evaluation(config, packed=mode == "eval_packed")
        place = Place.of(mesh, dp_rank, dp_size)
        check_dp_size(config.global_batch, place.dp_size, place.dp_rank)
        self.config = config
        self.execution = execution or ExecutionConfig()
        self.dp_rank, self.dp_size, self._dp_group = place.dp_rank, place.dp_size, place.group
        self._share = Share.of(share, share_group)
        device = open_device(self.execution, config.pixel_class)
        if device is not None and self._share is not None:
            raise ConfigError(
                "share='leader' sends batches that lie on the CPU: with device="
                f"{self.execution.device!r} every peer loads its own, so use share='all'"
            )
        self._run = open_run(config, self.execution, device=device)
        self._report = Report(config, self.execution.reject_log)
        self._digests = DigestLog(
            self.execution.digest_log, self._run.identity, self.dp_rank, self.dp_size
        )
        loads = self._share is None or self._share.leads
        self._lanes = lane_range(config.lanes, self.dp_rank, self.dp_size) if loads else range(0)
        self._changes: tuple[tuple[str, Any, Any, int], ...] = ()
        self._restored: Restored | None = None
        self._end: int | None = None
        self._end_known = False
        self._feed: Feed[Step] | None = None
        self._begun_at = self._waited = 0.0
        self._tokens = self._targets = self._rows = 0
        self._budget = ByteBudget(self.execution.memory_budget)
        idle = SerialBackend()
        start = tuple(self._run.lane(number, idle).snapshot() for number in self._lanes)
        self._step = 0
        self._ring: deque[tuple[int, tuple[LaneSnapshot, ...]]] = deque([(0, start)], RING + 1)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of everything that decides a batch, in hex."""
        return fingerprint(self._run.identity)

    def __len__(self) -> int:
        """Batches of the whole run, from step 0. TypeError where the run has no known end."""
        end = self._known_end()
        if end is None:
            raise TypeError(
                "this run has no known length: its sources repeat for ever (set stop.num_steps or "
                "stop.epochs), or stop.count is 'never'"
            )
        per_step = self.execution.micro_batch
        if per_step is None:
            return end
        return sum(
            -(-(self.config.global_batch_at(step) // self.dp_size) // per_step)
            for step in range(end)
        )

    def __iter__(self) -> Iterator[Batch]:
        """Batches from here on. A second iterator closes the first."""
        self._close_feed()
        if self._share is None:
            self._feed = self._open_feed()
        else:
            place = f"dp_rank {self.dp_rank} of {self.dp_size}"
            who = f"run {self.fingerprint[:16]}… at step {self._step}"
            self._feed = self._share.feed(place, who, self._run.family, self._open_feed)
        self._begun_at = self._begun_at or time.monotonic()
        return self._iterate(self._feed)

    def _iterate(self, feed: Feed[Step]) -> Iterator[Batch]:
        made = self._step > 0 or self._end is not None or not self._run.plan.finite
        try:
            for step in feed:
                made = True
                if step.arrival is not None:
                    step.arrival.receive()
                for batch in step.batches[:-1]:
                    self._count(batch)
                    yield batch
                # a batch that was handed out counts as consumed, so the boundary moves first
                # (the log before it: a step that can't be logged is not handed out)
                self._digests.write(step.number)
                self._ring.append((step.number + 1, step.lanes))
                self._report.watch(step.lanes)
                self._step = step.number + 1
                self._count(step.batches[-1])
                yield step.batches[-1]
            if not made:  # an uncounted run: a counted one says so before its first step
                raise no_documents(self._report.last_rejected)
        finally:
            self._waited += feed.waited_seconds
            feed.close()
            if self._feed is feed:
                self._feed = None

    def _state(self, step: int | None) -> LoaderState:
        wanted = self._step if step is None else step
        lanes = dict(self._ring).get(wanted)
        if lanes is None:
            known = ", ".join(str(number) for number, _ in self._ring)
            raise StateError(f"no state before step {wanted} is kept; kept are {known}")
        encoded = {n: lane.encode() for n, lane in zip(self._lanes, lanes, strict=True)}
        return LoaderState(
            wanted, self.config.lanes, self._run.identity, encoded, changes=self._changes
        )

    def load_state_dict(self, state: Mapping[str, Any], allow: Collection[str] = ()) -> None:
        """Go on from a state, of any ``dp_size``, that holds at least this rank's lanes.

        Nothing is read yet: a document that waited to be packed is measured again when it is
        packed. Iterating raises StateError if it then isn't what it was when the state was saved.
        (What a shorter ``sequence_length`` makes too long is measured here, and cut again.)

        Args:
            state: what `state_dict`, `gather_state` or `merge_states` gave, of either form.
            allow: changes of the config that are meant: ``weights``, ``sources`` (one added, or one
                without waiting documents removed), ``sequence_length``, ``global_batch``, ``stop``.
                They hold for what is drawn from here on, and are recorded in the state.

        Raises:
            StateError: the state is damaged, of another run, or lacks a lane.
        """
        read = LoaderState.from_dict(state)
        changes = compare(read.identity, self._run.identity)
        check_changes(changes, allow)
        self._close_feed()
        restored = Restored.of(read, self.config, changes)
        idle = SerialBackend()
        lanes = [self._run.lane(number, idle) for number in self._lanes]
        for lane in lanes:
            restored.put(lane)
        self._changes = read.changes + tuple((*change, read.step) for change in changes)
        self._digests.restart(self._changes)
        # a run whose config has changed on its way is counted from here: its past is another's
        self._restored = restored if self._changes else None
        self._end_known = False
        self._step = read.step
        self._ring.clear()
        self._ring.append((read.step, tuple(lane.snapshot() for lane in lanes)))

    def stats(self) -> dict[str, Any]:
        """What the loader has done and how: see `pipeline.stats.loader_stats`."""
        feed = self._feed
        return loader_stats(
            self.config,
            [s for n, s in zip(self._lanes, self._ring[-1][1], strict=True) if self._owns(n)],
            step=self._step,
            rows=self._rows,
            tokens=self._tokens,
            targets=self._targets,
            damaged=self._report.damaged,
            media=self._run.materialise.counts,
            waited=self._waited + (feed.waited_seconds if feed is not None else 0.0),
            elapsed=time.monotonic() - self._begun_at if self._begun_at else 0.0,
            held_bytes=self._budget.held_bytes if feed is not None else 0,
        )

    @property
    def read_counts(self) -> ReadCounts:
        """Members and bytes that this process has read from shards."""
        return self._run.reader.reads

    @property
    def rejected(self) -> list[dict[str, str | int]]:
        """The last samples that gave no document and the last damaged media, each once."""
        return self._report.entries()

    def reduce_target_tokens(
        self, batch: Batch | Sequence[Batch], group: dist.ProcessGroup | None = None
    ) -> int:
        """Target tokens of a batch, or of a step's micro-batches, over all ranks; at least 1.

        A collective: call it on every rank, in the trainer's thread. Without an initialised process
        group it is the batch's own count.

        Args:
            batch: this rank's batch or batches.
            group: the data-parallel ranks; None: those of the mesh, or all ranks of the job.
        """
        batches = [batch] if isinstance(batch, Batch) else batch
        count = sum(each.num_target_tokens for each in batches)
        return max(1, sum_over(count, group or self._dp_group))

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Loader holds threads and open shards and can't be pickled: make one in each process "
            "from its configs (it needs no DataLoader around it: ExecutionConfig.workers decode)"
        )

    def close(self) -> None:
        """End all work in flight, close the shards. The loader may be iterated again afterwards."""
        self._close_feed()
        self._run.reader.close()
        self._report.close()
        self._digests.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_backend(self) -> Backend:
        self._budget = ByteBudget(self.execution.memory_budget)
        return open_backend(
            self.execution.backend,
            workers=self.execution.workers,
            budget=self._budget,
            ray_address=self.execution.ray_address,
        )

    def _known_end(self, backend: Backend | None = None) -> int | None:
        """The step at which the run ends, counted once, on ``backend`` or one of its own."""
        if not self._end_known:
            used = backend or self._open_backend()
            try:
                self._end = run_length(
                    self._run,
                    self.execution,
                    used,
                    dp_rank=self.dp_rank,
                    dp_size=self.dp_size,
                    group=self._dp_group,
                    restored=self._restored,
                )
            finally:
                if backend is None:
                    used.close()
            self._end_known = True
        return self._end

    def _open_feed(self) -> Feed[Step]:
        """Start making steps from the last boundary on."""
        backend = self._open_backend()
        try:
            end = self._known_end(backend)
        except BaseException:
            backend.close()
            raise
        threads = self.execution.backend != "serial"
        workers = self.execution.workers or default_workers()
        window = 1 + 2 * workers // len(self._lanes) if threads else 1
        block = block_of(len(self._lanes))
        first, snapshots = self._ring[-1]
        lanes = []
        for number, snapshot in zip(self._lanes, snapshots, strict=True):
            told = self._on_rejected(number)
            lane = self._run.lane(number, backend, window=window, block=block, on_rejected=told)
            lane.resume(snapshot)
            lanes.append(lane)
        steps = RankSteps(
            config=self.config,
            dp_rank=self.dp_rank,
            dp_size=self.dp_size,
            lanes=lanes,
            media=self._run.media(backend, workers * threads, self.execution.memory_budget),
            collate=self._run.collate,
            on_damaged=self._report.damage,
            ahead=self.execution.prefetch if threads else 0,
            micro_batch=self.execution.micro_batch,
        ).run(first, end, until_empty=self._run.plan.finite and end is None)
        hashed = on_device(self._digests.hashed(steps), self._run.device)
        return (
            Prefetcher(
                hashed,
                self.execution.prefetch,
                size_of=lambda step: step.size_bytes,
                budget=self._budget,
                cancel=backend.close,
            )
            if threads
            else Direct(hashed, cancel=backend.close)
        )

    def _owns(self, lane: int) -> bool:
        """Whether the lane's first slot is this rank's. The other ranks that run it stay silent."""
        return (
            self.dp_rank * self.config.lanes
            <= lane * self.dp_size
            < ((self.dp_rank + 1) * self.config.lanes)
        )

    def _on_rejected(self, lane: int) -> Callable[[Rejected], None]:
        return self._report.reject if self._owns(lane) else lambda rejected: None

    def _close_feed(self) -> None:
        if self._feed is not None:
            self._feed.close()
            self._feed = None

    def _count(self, batch: Batch) -> None:
        self._rows += len(batch.slots)
        self._tokens += batch.num_tokens
        self._targets += batch.num_target_tokens
