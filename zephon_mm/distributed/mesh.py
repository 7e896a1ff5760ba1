"""Where a rank stands among the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..errors import ConfigError
from .exchange import device_of, is_distributed

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Place:
    """A data-parallel rank.

    Attributes:
        dp_rank: this rank.
        dp_size: data-parallel ranks.
        group: their process group; None: torch's default group, if there is one.
    """

    dp_rank: int
    dp_size: int
    group: dist.ProcessGroup | None = None

    @classmethod
    def of(cls, mesh: DeviceMesh | None, dp_rank: int, dp_size: int) -> Place:
        """The place that a mesh of one dimension gives, or else the two numbers.

        Raises:
            ConfigError: both are given, or the mesh has several dimensions.
        """
        if mesh is None:
            return cls(dp_rank, dp_size)
        if (dp_rank, dp_size) != (0, 1):
            raise ConfigError(
                f"mesh and dp_rank={dp_rank}, dp_size={dp_size} are both given: the mesh says both"
            )
        if not all(hasattr(mesh, name) for name in ("ndim", "get_local_rank", "get_group")):
            raise ConfigError(f"mesh is a {type(mesh).__name__}, expected a DeviceMesh")
        if mesh.ndim != 1:
            names = mesh.mesh_dim_names
            raise ConfigError(
                f"mesh has {mesh.ndim} dimensions{f' {names}' if names else ''}: pass the "
                'data-parallel one, as mesh["dp"], or several as one, as '
                'mesh["dp_replicate", "dp_shard"]._flatten("dp")'
            )
        return cls(mesh.get_local_rank(), mesh.size(), mesh.get_group())


def sum_over(value: int, group: dist.ProcessGroup | None) -> int:
    """The sum of all ranks' values: a collective. Without a process group the value itself."""
    if not is_distributed():
        return value
    import torch.distributed as dist

    count = torch.tensor(value, dtype=torch.int64, device=device_of(group))
    dist.all_reduce(count, group=group)
    return int(count)
