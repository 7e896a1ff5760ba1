"""Several processes of one job: device meshes, gathered states, one leader that loads for peers."""

from .checkpoints import Checkpoints
from .exchange import first_rank, gather_bytes, group_of, is_distributed
from .mesh import Place, sum_over
from .share import Share

__all__ = [
    "Checkpoints",
    "Place",
    "Share",
    "first_rank",
    "gather_bytes",
    "group_of",
    "is_distributed",
    "sum_over",
]
