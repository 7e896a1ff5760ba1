"""``zephon-mm index``: read shards once and keep what a run needs to know of them.

Writes a sidecar beside each shard and one manifest for the list of shards, as the loader does by
itself at first use. What was skipped and what will be quarantined is told at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..config import Source

if TYPE_CHECKING:
    from ..shards import Access, Manifest, ShardDone
    from ..shards.index import Verify


class KeyRule(StrEnum):
    """Which dot of a base name ends the key."""

    first_dot = "first_dot"
    last_dot = "last_dot"


SHOWN = 10
"""Media of a kind that are named after the table."""


def index(
    urls: Annotated[
        list[str],
        typer.Argument(
            help="Shards: paths, globs or brace expressions (quote them), as in Source.urls.",
            show_default=False,
        ),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Processes that read and probe.")] = 1,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Decode every picture and clip, mark damaged ones, and name them.",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Index again what has an index already.")
    ] = False,
    allow_truncated: Annotated[
        bool,
        typer.Option(
            "--allow-truncated", help="Of a shard that is cut off, keep the whole members."
        ),
    ] = False,
    key: Annotated[
        KeyRule, typer.Option(help="Which dot of a base name ends the key.")
    ] = KeyRule.first_dot,
    cache_dir: Annotated[
        str | None,
        typer.Option(
            help="Folder for indices of remote shards, and of those whose own folder can't be "
            "written."
        ),
    ] = None,
    share: Annotated[
        bool,
        typer.Option(help="Put new indices beside remote shards too, for other hosts to find."),
    ] = True,
    storage_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Option of the store that remote shards lie in, such as "
            "endpoint=http://minio:9000; may be given again.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Index shards: one pass over each, in which headers are checked, members hashed and media
    probed. A run on the same list of shards then starts at once.

    The index of a shard is a Parquet file beside it (NAME.zmm.parquet). Shards that have one are
    not read again; one that doesn't fit its shard any more is an error until --force.

        zephon-mm index 'data/photos-{000000..000003}.tar' 'data/clips-*.tar' --workers 4
    """
    from ..media.probe import probe_member
    from ..shards import Access, open_source

    source = Source(
        id="index",
        urls=tuple(urls),
        format="text",
        key=key.value,
        allow_truncated=allow_truncated,
    )
    check: Verify | None = None
    if verify:
        from ..media.verify import verify_member

        check = verify_member
    access = Access(options=_options(storage_option or ()), share_indices=share)
    with _Bar() as bar:
        manifest = open_source(
            source,
            cache_dir=cache_dir,
            probe=probe_member,
            workers=workers,
            verify=check,
            force=force,
            check=True,
            progress=bar.advance,
            access=access,
        )
    found = media_found(manifest, cache_dir, access) if verify else None
    Console().print(summary(manifest, bar.num_built, found))
    for kind, names in (found or {}).items():
        for name in names[:SHOWN]:
            Console(soft_wrap=True).print(f"{kind}: {name}", markup=False, highlight=False)
        if len(names) > SHOWN:
            Console().print(f"{kind}: and {len(names) - SHOWN:,} more", highlight=False)


def media_found(manifest: Manifest, cache_dir: str | None, access: Access) -> dict[str, list[str]]:
    """What ``--verify`` found of media: member and shard of each that is unreadable or damaged."""
    from ..media.info import read_probe
    from ..shards import ShardReader

    found: dict[str, list[str]] = {"unreadable": [], "damaged": []}
    reader = ShardReader([manifest], cache_dir=cache_dir, access=access)
    for shard, url in enumerate(manifest.shards):
        index = reader.index(0, shard)
        for sample in range(index.num_samples):
            for position in index.members(sample).values():
                member = index.member(position)
                if member.probe is None or member.clean is not False:
                    continue
                problem = read_probe(member.probe).problem
                if problem is not None:
                    found["unreadable"].append(f"{member.name} in {url}: {problem}")
                else:
                    found["damaged"].append(f"{member.name} in {url}")
    reader.close()
    return found


def _options(pairs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    split = [pair.partition("=") for pair in pairs]
    wrong = [name for name, equals, _ in split if not (name and equals)]
    if wrong:
        raise typer.BadParameter(f"{wrong[0]!r} is not NAME=VALUE", param_hint="--storage-option")
    return tuple(sorted((name, value) for name, _, value in split))


class _Bar:
    """Shards, members and bytes as they are indexed, on stderr."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("indexing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("shards  {task.fields[members]:,} members  {task.fields[size]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task("index", total=None, members=0, size="0 B")
        self._members = self._bytes = self.num_built = 0

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, done: ShardDone) -> None:
        self._members += done.meta.num_members
        self._bytes += done.meta.size_bytes
        self.num_built += done.built
        self._progress.update(
            self._task,
            advance=1,
            total=done.num_shards,
            members=self._members,
            size=format_bytes(self._bytes),
        )


def summary(
    manifest: Manifest, num_built: int, found: Mapping[str, Sequence[str]] | None = None
) -> Table:
    """The closing table; ``found``: see `media_found`."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")

    def row(name: str, value: int | str) -> None:
        table.add_row(name, f"{value:,}" if isinstance(value, int) else value)

    row("shards", len(manifest.shards))
    row("  indexed now", num_built)
    if manifest.num_truncated:
        row("  cut off", manifest.num_truncated)
    row("samples", manifest.num_total)
    row("members", manifest.num_members)
    row("data", format_bytes(manifest.data_bytes))
    for title, counts in (("skipped", manifest.skipped), ("quarantined", manifest.quarantined)):
        row(title, sum(counts.values()))
        for kind, count in counts.items():
            row(f"  {kind}", count)
    for kind, names in (found or {}).items():
        row(f"media {kind}", len(names))
    row("digest", manifest.digest.hex()[:16])
    return table


def format_bytes(size: int) -> str:
    """A size for people: ``1.4 GB``."""
    value = float(size)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{size} B" if unit == "B" else f"{value:.1f} {unit}"
