"""A contact sheet: one packed row as a picture, drawn from what the model is given.

Frames are put together from the batch's own patches and text from its token ids, so the sheet shows
what is trained on, not what was meant to be. Text with loss is black, text without is grey.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from ..batch import IGNORE, Batch, DocumentSpan
from ..models import Tokenizer
from ..patches import PatchLayout

WIDTH = 1200
MARGIN = 20
THUMB = 108
LINE = 20
MAX_LINES = 5
INK, FAINT, PAPER, PAD = (25, 25, 25), (150, 150, 150), (255, 255, 255), (225, 225, 225)
COLOURS = ((38, 110, 190), (214, 120, 30), (50, 140, 75), (170, 60, 120), (120, 90, 190))


def frames_of(
    patches: NDArray[np.uint8], grid: tuple[int, int, int], layout: PatchLayout
) -> NDArray[np.uint8]:
    """Put a medium's patches together: uint8 [n, columns] → uint8 [frames, height, width, 3].

    The last frame stands twice where the number of frames is no multiple of the temporal patch.
    """
    time, high, wide = grid
    merge, size, temporal = layout.merge_size, layout.patch_size, layout.temporal_patch_size
    cut = patches.reshape(time, high // merge, wide // merge, merge, merge, 3, temporal, size, size)
    whole = cut.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5)
    return whole.reshape(time * temporal, high * size, wide * size, 3)


def write_sheet(
    path: Path, batch: Batch, row: int, tokenizer: Tokenizer, layout: PatchLayout
) -> None:
    """Draw row ``row`` of a batch to a PNG: a ribbon of its tokens, then document by document."""
    documents = batch.documents[row]
    media = _media(batch, row, layout)
    colours = _colours(batch)
    bands = [
        _band(document, batch, row, next(media), tokenizer, colours[document.source])
        for document in documents
    ]
    head = _head(batch, row, colours)
    sheet = Image.new("RGB", (WIDTH, head.height + sum(b.height for b in bands)), PAPER)
    top = 0
    for part in (head, *bands):
        sheet.paste(part, (0, top))
        top += part.height
    sheet.save(path, optimize=True)


def _colours(batch: Batch) -> dict[str, tuple[int, int, int]]:
    names = sorted({document.source for row in batch.documents for document in row})
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _media(batch: Batch, row: int, layout: PatchLayout) -> Iterator[list[NDArray[np.uint8]]]:
    """Of each document of the row, the frames of its media."""
    at = {"image": 0, "video": 0}
    patches = {
        "image": batch.image_patches.cpu().numpy(),
        "video": batch.video_patches.cpu().numpy(),
    }
    for number, documents in enumerate(batch.documents[: row + 1]):
        for document in documents:
            found = []
            for span in document.media:
                start = at[span.kind]
                at[span.kind] = stop = start + span.num_patches
                if number == row:
                    frames = frames_of(patches[span.kind][start:stop], span.grid, layout)
                    found.append(frames[: max(1, len(span.frames))])
            if number == row:
                yield found


def _head(batch: Batch, row: int, colours: dict[str, tuple[int, int, int]]) -> Image.Image:
    """Title and ribbon: documents as coloured blocks, media darker, targets marked below."""
    image = Image.new("RGB", (WIDTH, 100), PAPER)
    draw = ImageDraw.Draw(image)
    length = batch.input_ids.shape[1]
    documents = batch.documents[row]
    used = documents[-1].stop if documents else 0
    draw.text(
        (MARGIN, 12),
        f"step {batch.step}, slot {batch.slots[row]}: {len(documents)} documents in {used} of "
        f"{length} tokens",
        INK,
        _font(20),
    )
    scale = (WIDTH - 2 * MARGIN) / length

    def block(start: int, stop: int, top: int, bottom: int, colour: tuple[int, int, int]) -> None:
        draw.rectangle((MARGIN + start * scale, top, MARGIN + stop * scale - 1, bottom), colour)

    block(0, length, 48, 72, PAD)
    for document in documents:
        colour = colours[document.source]
        block(document.start, document.stop, 48, 72, _mix(colour, PAPER, 0.45))
        for span in document.media:
            block(span.start, span.stop, 48, 72, colour)
        draw.line((MARGIN + document.start * scale, 44, MARGIN + document.start * scale, 76), INK)
    trained = (batch.labels[row] != IGNORE).nonzero().flatten().tolist()
    for token in trained:
        block(token, token + 1, 76, 80, INK)
    draw.text(
        (MARGIN, 82), "dark: pictures and clips; black line: tokens with loss", FAINT, _font(13)
    )
    return image


def _band(
    document: DocumentSpan,
    batch: Batch,
    row: int,
    media: Sequence[NDArray[np.uint8]],
    tokenizer: Tokenizer,
    colour: tuple[int, int, int],
) -> Image.Image:
    """One document: what it is, its frames with their times, its text."""
    thumbs = [
        thumb
        for span, frames in zip(document.media, media, strict=True)
        for thumb in _thumbs(frames, span.pts_seconds)
    ]
    rows: list[list[Image.Image]] = [[]]
    for thumb in thumbs:
        if sum(t.width + 6 for t in rows[-1]) + thumb.width > WIDTH - 3 * MARGIN:
            rows.append([])
        rows[-1].append(thumb)
    words = list(_words(document, batch, row, tokenizer))
    lines = _wrap(words, WIDTH - 4 * MARGIN)
    high = 34 + sum(max(t.height for t in r) + 6 for r in rows if r) + LINE * len(lines) + 14
    image = Image.new("RGB", (WIDTH, high), PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((MARGIN, 4, MARGIN + 5, high - 8), colour)
    left, top = 2 * MARGIN, 4
    title = f"{document.source} / {document.key}"
    about = f"tokens {document.start} to {document.stop - 1}"
    if document.damaged:
        about += ", damaged: no loss"
    draw.text((left, top), title, colour, _font(17))
    draw.text((left + draw.textlength(title, _font(17)) + 14, top + 3), about, FAINT, _font(14))
    top += 28
    for line in filter(None, rows):
        at = left
        for thumb in line:
            image.paste(thumb, (at, top))
            at += thumb.width + 6
        top += max(thumb.height for thumb in line) + 6
    for text in lines:
        place = float(left)
        for word, trained in text:
            draw.text((place, top), word, INK if trained else FAINT, _font(15))
            place += _font(15).getlength(word)
        top += LINE
    return image


def _thumbs(frames: NDArray[np.uint8], times: Sequence[float]) -> Iterator[Image.Image]:
    """Each frame at the height of a thumbnail, its time below it."""
    for number, frame in enumerate(frames):
        picture = Image.fromarray(frame)
        wide = max(40, min(WIDTH // 2, round(picture.width * THUMB / picture.height)))
        thumb = Image.new("RGB", (wide, THUMB + (18 if times else 0)), PAPER)
        thumb.paste(picture.resize((wide, THUMB), Image.Resampling.LANCZOS))
        if times:
            label = f"{times[number]:.2f} s"
            ImageDraw.Draw(thumb).text((2, THUMB + 1), label, INK, _font(13))
        yield thumb


def _words(
    document: DocumentSpan, batch: Batch, row: int, tokenizer: Tokenizer
) -> Iterator[tuple[str, bool]]:
    """The document's words, and whether each is trained on; media as one word."""
    ids, labels = batch.input_ids[row].tolist(), batch.labels[row].tolist()
    at = document.start
    spans = {span.start: span for span in document.media}
    while at < document.stop:
        if at in spans:
            span = spans[at]
            frames = f", {len(span.frames)} frames" if span.frames else ""
            high, wide = span.size
            yield f"[{span.kind} {wide} by {high}{frames}: {span.stop - span.start} tokens] ", False
            at = span.stop
            continue
        trained, end = labels[at] != IGNORE, at
        while end < document.stop and end not in spans and (labels[end] != IGNORE) == trained:
            end += 1
        text = tokenizer.decode(ids[at:end]).replace("\n", " ")
        for word in text.split(" "):
            yield word + " ", trained
        at = end


def _wrap(words: Sequence[tuple[str, bool]], width: int) -> list[list[tuple[str, bool]]]:
    lines: list[list[tuple[str, bool]]] = [[]]
    room = float(width)
    for word, trained in words:
        size = _font(15).getlength(word)
        if size > room and lines[-1]:
            if len(lines) == MAX_LINES:
                lines[-1].append(("…", trained))
                break
            lines.append([])
            room = float(width)
        lines[-1].append((word, trained))
        room -= size
    return lines


def _mix(
    one: tuple[int, int, int], two: tuple[int, int, int], share: float
) -> tuple[int, int, int]:
    red, green, blue = (round(a * share + b * (1 - share)) for a, b in zip(one, two, strict=True))
    return red, green, blue


def _font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size)
    if not isinstance(font, ImageFont.FreeTypeFont):
        raise OSError(
            "this Pillow was built without FreeType, which the contact sheet's text needs"
        )
    return font
