"""``zephon-mm show``: what a step trains on, found from its config alone.

Packs the lanes up to the step, by plan, measure and sequencer: text is read, no media are, unless
pictures of the rows are wanted.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..config import DataConfig, load_yaml
from ..errors import ConfigError, StateError

if TYPE_CHECKING:
    from ..batch import Batch, DocumentSpan
    from ..config import ExecutionConfig
    from ..pipeline import Restored, Run
    from ..sample import MediaSpan

EXCERPT = 60
"""Characters of a document's text in the table."""

WIDEST = 10_000


def show(
    config: Annotated[Path, typer.Argument(help="YAML of the run.", show_default=False)],
    step: Annotated[int, typer.Option(min=0, help="The step, from 0.", show_default=False)],
    state: Annotated[
        list[Path] | None,
        typer.Option(
            help="A state of the run, or a folder of them: the nearest one before the step is "
            "started from instead of step 0 (repeatable)."
        ),
    ] = None,
    slot: Annotated[
        list[int] | None,
        typer.Option(help="Only this row of the global batch; quicker (repeatable)."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON line a row, with token ids, labels and texts.")
    ] = False,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="A line a token: slot, place, id, t if it trains, text")
    ] = False,
    png: Annotated[
        Path | None,
        typer.Option(help="Also decode the media, and draw each row to this folder as a PNG."),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A change of the config since --state that is meant (repeatable)."),
    ] = None,
) -> None:
    r"""Print what a step of a run trains on: its rows, and the documents in them.

        zephon-mm show vlm.yaml --step 1200

        zephon-mm show vlm.yaml --step 1200 --state checkpoints --slot 3 --png out

    Nothing is trained, and of media only headers are read (from the index). But every document
    before the step is tokenised again, so a far step takes a while: `--state` starts from a
    checkpoint's state nearby, and `--slot` packs only the lane of that row.

    Two machines that should agree and don't, at a step that `zephon-mm verify` has found:

        diff <(ssh one zephon-mm show vlm.yaml --step 1200 --slot 3 --tokens) \
             <(ssh two zephon-mm show vlm.yaml --step 1200 --slot 3 --tokens)
    """
    from ..pipeline.run import open_run

    if as_json and tokens:
        raise ConfigError("give --json or --tokens, not both")
    data, execution = load_yaml(config)
    slots = check_slots(data, step, slot)
    if png is not None:
        make_folder(png)
    start = nearest(state, step) if state else None
    run = open_run(data, execution)
    shown = False
    for batch in rows_of(run, execution, step, slots, start, allow or (), decode=png is not None):
        shown = shown or bool(batch.documents[0])
        if as_json:
            sys.stdout.write(json.dumps(described(batch, run)) + "\n")
        elif tokens:
            sys.stdout.writelines(f"{line}\n" for line in token_lines(batch, run))
        else:
            print_row(batch, run)
        if png is not None:
            draw(png, batch, run)
    if not shown:
        sys.stderr.write(f"step {step} has only padding here: the run's data end before it\n")


def check_slots(config: DataConfig, step: int, wanted: Sequence[int] | None) -> list[int]:
    """The slots to show, in order; ConfigError for one that isn't there, or a step past the end."""
    batch = config.global_batch_at(step)
    last = config.stop.num_steps
    if last is not None and step >= last:
        raise ConfigError(f"--step {step}: the run has stop.num_steps={last}, so 0 to {last - 1}")
    for number in wanted or ():
        if not 0 <= number < batch:
            raise ConfigError(
                f"--slot {number}: step {step} has {batch} rows, numbered 0 to {batch - 1}"
            )
    return sorted(set(wanted)) if wanted else list(range(batch))


def nearest(paths: Sequence[Path], step: int) -> dict[str, Any]:
    """Of the states in files and folders, the last one that is not after ``step``.

    Raises:
        StateError: there is none, or a file that was named is no state.
    """
    from ..state import read_state

    best: dict[str, Any] | None = None
    seen = []
    for path in paths:
        folder = path.is_dir()
        for file in sorted(path.glob("*.json")) if folder else [path]:
            try:
                found = read_state(file)
            except StateError:
                if not folder:
                    raise
                continue  # a folder may hold other files
            seen.append(found["step"])
            if found["step"] <= step and (best is None or found["step"] > best["step"]):
                best = found
    if best is None:
        where = ", ".join(map(str, paths))
        found_steps = ", ".join(map(str, sorted(seen))) or "none"
        raise StateError(
            f"--state {where}: no state at or before step {step}; states found are before steps: "
            f"{found_steps}. Without --state the steps are packed from 0"
        )
    return best


def rows_of(
    run: Run,
    execution: ExecutionConfig,
    step: int,
    slots: Sequence[int],
    state: dict[str, Any] | None,
    allow: Sequence[str],
    *,
    decode: bool,
) -> Iterator[Batch]:
    """The rows of ``slots``, each as a batch, lane by lane."""
    from ..backends import ByteBudget, open_backend
    from ..pipeline.progress import Bar
    from ..pipeline.walk import lane_rows, walk_lane

    per_lane = run.config.global_batch_at(step) // run.config.lanes
    lanes = sorted({slot // per_lane for slot in slots})
    restored = None if state is None else restore(run, state, allow)
    first = 0 if restored is None else restored.state.step
    backend = open_backend(
        "threads", workers=execution.workers, budget=ByteBudget(execution.memory_budget)
    )
    try:
        with Bar(f"packing steps {first} to {step}", (step - first) * len(lanes)) as bar:
            for number in lanes:
                lane = walk_lane(
                    run, backend, number, step, restored=restored, progress=bar.advance
                )
                rows = lane_rows(run, backend, lane, step, decode=decode)
                lane.close()
                yield from (row for row in rows if row.slots[0] in slots)
    finally:
        backend.close()


def restore(run: Run, state: dict[str, Any], allow: Sequence[str]) -> Restored:
    """The state as this run goes on from it; StateError if it is another run's."""
    from ..pipeline import Restored
    from ..state import LoaderState, check_changes, compare

    read = LoaderState.from_dict(state)
    changes = compare(read.identity, run.identity)
    check_changes(changes, allow)
    return Restored.of(read, run.config, changes)


def described(batch: Batch, run: Run) -> dict[str, Any]:
    """A row as plain data."""
    (documents,) = batch.documents
    return {
        "step": batch.step,
        "slot": batch.slots[0],
        "lane": batch.slots[0] // (run.config.global_batch_at(batch.step) // run.config.lanes),
        "num_tokens": batch.num_tokens,
        "num_target_tokens": batch.num_target_tokens,
        "documents": [
            {
                "source": document.source,
                "shard": document.shard,
                "key": document.key,
                "epoch": document.epoch,
                "start": document.start,
                "stop": document.stop,
                "token_start": document.token_start,
                "token_stop": document.token_stop,
                "damaged": document.damaged,
                "media": [medium(document, span, run) for span in document.media],
                "text": text_of(document, batch, run),
            }
            for document in documents
        ],
        "input_ids": batch.input_ids[0].tolist(),
        "labels": batch.labels[0].tolist(),
    }


def medium(document: DocumentSpan, span: MediaSpan, run: Run) -> dict[str, Any]:
    """A medium as plain data; sizes are [height, width] in pixels."""
    member = run.reader.member(document.ref.source, document.ref.shard, span.member)
    found: dict[str, Any] = {
        "kind": span.kind,
        "member": member.name,
        "bytes": member.length,
        "source_size": list(span.source_size),
        "size": list(span.size),
        "grid": list(span.grid),
        "start": span.start,
        "stop": span.stop,
    }
    if span.kind == "video":
        found |= {"frames": list(span.frames), "seconds": list(span.pts_seconds), "fps": span.fps}
    return found


def text_of(document: DocumentSpan, batch: Batch, run: Run) -> str:
    """A document's text here, each medium as ``[image]`` or ``[video]``."""
    ids = batch.input_ids[0].tolist()
    texts, at = [], document.start
    for span in document.media:
        texts += [run.tokenizer.decode(ids[at : span.start]), f"[{span.kind}]"]
        at = span.stop
    return "".join([*texts, run.tokenizer.decode(ids[at : document.stop])])


def token_lines(batch: Batch, run: Run) -> Iterator[str]:
    """A line a token, tabs between: slot, place, id, ``t`` if it trains or ``-``, text as JSON."""
    texts: dict[int, str] = {}
    pairs = zip(batch.input_ids[0].tolist(), batch.labels[0].tolist(), strict=True)
    for place, (token, label) in enumerate(pairs):
        if token not in texts:
            texts[token] = json.dumps(run.tokenizer.decode([token]), ensure_ascii=False)
        trains = "t" if label == token else "-"
        yield f"{batch.slots[0]}\t{place}\t{token}\t{trains}\t{texts[token]}"


def print_row(batch: Batch, run: Run) -> None:
    """A row as a table, a line a document; wider than the terminal if need be."""
    row = described(batch, run)
    length = len(row["input_ids"])
    table = Table(
        title=f"step {row['step']}, slot {row['slot']} (lane {row['lane']}): "
        f"{len(row['documents'])} documents in {row['num_tokens']:,} of {length:,} tokens, "
        f"{row['num_target_tokens']:,} of them train",
        title_justify="left",
    )
    for name in ("tokens", "source", "shard", "key", "epoch", "its tokens", "media", "text"):
        table.add_column(name, no_wrap=True)
    for document in row["documents"]:
        text = " ".join(document["text"].split())
        table.add_row(
            f"{document['start']}-{document['stop']}",
            Text(document["source"]),
            Text(os.path.basename(document["shard"])),
            Text(document["key"]),
            str(document["epoch"]),
            f"{document['token_start']}-{document['token_stop']}"
            + (" damaged" if document["damaged"] else ""),
            Text("\n".join(medium_line(found) for found in document["media"])),
            Text(text if len(text) <= EXCERPT else text[: EXCERPT - 1] + "…"),
        )
    out = Console(highlight=False)
    out.width = max(out.width, Console(width=WIDEST).measure(table).maximum)
    out.print(table)


def medium_line(found: dict[str, Any]) -> str:
    """One medium in a few words."""
    high, wide = found["size"]
    source_high, source_wide = found["source_size"]
    line = f"{found['kind']} {wide}x{high} of {source_wide}x{source_high}"
    if found["kind"] == "image":
        return line
    frames, times = found["frames"], found["seconds"]
    few = ",".join(map(str, frames[:8])) + ("…" if len(frames) > 8 else "")
    return f"{line}, {len(frames)} frames ({few}), {times[0]:.2f} to {times[-1]:.2f} s"


def draw(folder: Path, batch: Batch, run: Run) -> None:
    """Draw a row, its media decoded, to ``step_…_slot_….png``."""
    from ..demo.sheet import write_sheet

    name = f"step_{batch.step:08d}_slot_{batch.slots[0]:05d}.png"
    write_sheet(folder / name, batch, 0, run.tokenizer, run.family.patches)
    sys.stderr.write(f"{folder / name}\n")


def make_folder(folder: Path) -> None:
    """Make a folder for pictures; ConfigError if that can't be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--png {folder}: {error.strerror or error}") from error
