"""``share="leader"``: of the peers that train on the same rows, one loads and sends.

Peers are the tensor-, pipeline- and context-parallel ranks of one data-parallel rank. The first of
their group runs lanes and decodes; the others run nothing and get each step in two broadcasts of
JSON and one a tensor. All of it happens in ``iter(loader)`` and ``next()``, in the trainer's
thread, so its order among the trainer's own collectives is the same on every peer. Whatever the
leader raises is raised on every peer in the same place.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Literal

import torch

from ..backends import Direct, Feed
from ..errors import ConfigError, StateError, ZephonError
from ..models import ModelFamily
from ..pipeline import Step
from .exchange import (
    decode_error,
    device_of,
    encode_error,
    gather_bytes,
    group_of,
    is_distributed,
    leaving,
    to_tensor,
)
from .wire import decode_step, empty_tensors, encode_step

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

_STEP, _END, _ERROR = range(3)


class Share:
    """A group of peers and this process's part in it.

    Args:
        group: the peers; the first of them leads.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        import torch.distributed as dist

        self._group = group
        self._source = 0 if group is None else dist.get_global_rank(group, 0)
        self._device = device_of(group)
        self.leads = dist.get_rank(group) == 0

    @classmethod
    def of(
        cls,
        share: Literal["all", "leader"],
        group: dist.ProcessGroup | DeviceMesh | None,
    ) -> Share | None:
        """The group that the loader's arguments mean; None: every peer loads for itself.

        Raises:
            ConfigError: the arguments disagree, or there is no process group.
        """
        if share not in ("all", "leader"):
            raise ConfigError(f"share={share!r}: must be 'all' or 'leader'")
        if share == "all":
            if group is not None:
                raise ConfigError("share_group is given and share is 'all': pass share='leader'")
            return None
        if group is None:
            raise ConfigError(
                "share='leader' needs share_group, the peers of one data-parallel rank: a process "
                'group, or the mesh\'s other dimension, as share_group=mesh["tp"]'
            )
        if not is_distributed():
            raise ConfigError("share='leader' needs torch.distributed.init_process_group first")
        return cls(group_of(group))

    def feed(
        self, place: str, who: str, family: ModelFamily, open_feed: Callable[[], Feed[Step]]
    ) -> Feed[Step]:
        """The steps from here on: made here and sent, or received; a collective.

        Args:
            place: the data-parallel rank, which peers share.
            who: the run and the step that this loader stands at, which peers share too.
            family: the run's, for the batches that are received.
            open_feed: makes the steps; called on the leader only.

        Raises:
            ConfigError: the peers are of different data-parallel ranks.
            StateError: peers stand at different steps, or belong to different runs.
            ZephonError: what the leader raised.
        """
        # Opening a feed may be a collective of the data-parallel ranks' leaders. So it comes after
        # the check of who is a leader, and before the one of what a single leader may have wrong.
        places = self._told(place)
        if len(set(places)) > 1:
            raise ConfigError(
                f"share_group joins {', '.join(places)}: it must be the peers of one data-parallel "
                "rank, which train on the same batches"
            )
        feed: list[Feed[Step]] = []

        def begin() -> bytes:
            if self.leads:
                feed.append(open_feed())
            return b""

        try:
            gather_bytes(begin, self._group)
            told = self._told(who)
            if len(set(told)) > 1:
                raise StateError(
                    f"peers of share='leader' stand at different places: {'; '.join(told)}"
                )
        except BaseException:
            for opened in feed:
                opened.close()
            raise
        if not self.leads:
            return Direct(self._received(family))
        return Direct(self._sent(feed[0]), cancel=lambda seconds: feed[0].close())

    def _told(self, text: str) -> list[str]:
        """What every peer says, by rank."""
        return [told.decode() for told in gather_bytes(text.encode, self._group)]

    def _sent(self, feed: Feed[Step]) -> Iterator[Step]:
        """The steps of ``feed``, each sent to all peers before it is handed out."""
        import torch.distributed as dist

        try:
            while True:
                try:
                    step = next(feed, None)
                    meta, tensors = encode_step(step) if step is not None else (b"", [])
                except BaseException as error:
                    with contextlib.suppress(ZephonError):  # peers that have left need no news
                        self._send(_ERROR, encode_error(error, dist.get_rank()))
                    raise
                if step is None:
                    self._send(_END, b"")
                    return
                self._send(_STEP, meta)
                with leaving():
                    for tensor in tensors:
                        if tensor.numel():
                            ready = tensor.to(self._device).contiguous()
                            dist.broadcast(ready, self._source, group=self._group)
                yield step
        finally:
            feed.close()

    def _received(self, family: ModelFamily) -> Iterator[Step]:
        import torch.distributed as dist

        while True:
            kind, data = self._receive()
            if kind == _END:
                return
            if kind == _ERROR:
                raise decode_error(data)
            meta = json.loads(data)
            tensors = empty_tensors(meta, self._device)
            with leaving():
                for tensor in tensors:
                    if tensor.numel():
                        dist.broadcast(tensor, self._source, group=self._group)
            yield decode_step(meta, tensors, family)

    def _send(self, kind: int, data: bytes) -> None:
        import torch.distributed as dist

        head = torch.tensor([kind, len(data)], dtype=torch.int64, device=self._device)
        with leaving():
            dist.broadcast(head, self._source, group=self._group)
            if data:
                body = to_tensor(data).to(self._device)
                dist.broadcast(body, self._source, group=self._group)

    def _receive(self) -> tuple[int, bytes]:
        import torch.distributed as dist

        head = torch.empty(2, dtype=torch.int64, device=self._device)
        with leaving():
            dist.broadcast(head, self._source, group=self._group)
            kind, length = head.tolist()
            body = torch.empty(length, dtype=torch.uint8, device=self._device)
            if length:
                dist.broadcast(body, self._source, group=self._group)
        return kind, body.cpu().numpy().tobytes()
