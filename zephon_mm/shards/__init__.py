"""Shards: where they lie, what is in them, and reading members at random.

`storage` (ranged reads of local files) and `remote` (of stores), `tar` and `sparse` (headers),
`grouping` (WebDataset's rules), `index` and `sidecar` (one shard's table), `manifest` (one source),
`reader`, and `ahead` (fetching before reading).
"""

from .access import Access
from .index import BuiltIndex, Member, build_index
from .manifest import Manifest, ShardDone, open_source
from .places import cache_path
from .reader import ShardReader
from .sidecar import ShardIndex, load_index
from .storage import Storage, expand_urls, open_storage

__all__ = [
    "Access",
    "BuiltIndex",
    "Manifest",
    "Member",
    "ShardDone",
    "ShardIndex",
    "ShardReader",
    "Storage",
    "build_index",
    "cache_path",
    "expand_urls",
    "load_index",
    "open_source",
    "open_storage",
]
