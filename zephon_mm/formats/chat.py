"""``chat``: conversations, loss on the assistant's turns only.

One reader for the shapes in use, all in the ``json`` member (see docs/formats.md):

- Hugging Face: ``[{role, content}]``, alone or under ``messages``, content a string or a list of
  parts ``{"type": "text" | "image" | "video", …}``;
- LLaVA, Qwen: ``conversations [{from, value}]`` with ``<image>`` and ``<video>`` markers, files
  under ``image`` and ``video`` (LLaVA marks clips, too, with ``<image>``);
- ShareGPT (LLaMA-Factory): ``messages [{role, content}]`` with markers, files under ``images`` and
  ``videos``;
- LLaVA-OneVision-1.5: ``texts [{role, content}]``, ``media``, ``name``.

Calls of tools are read in OpenAI's form and in ShareGPT's (see `tools`).

Markers count in string contents only. Markers (and parts that name no file) take the files in
order, and their number must equal the files': those the JSON lists, else the sample's own, numbers
in names ordered as numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from ..sample import Document, ImagePart, Part, TextPart, Turn, VideoPart
from .base import (
    FormatOptions,
    Sample,
    checked_list,
    checked_object,
    checked_text,
    has_text,
    kind_of,
    malformed,
    no_text,
    window,
)
from .tools import read_calls, read_function_call, read_reasoning, read_tools

OPTIONS = frozenset({"json_field", "messages_key"})

MESSAGE_KEYS = ("messages", "conversations", "texts")
_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
    "developer": "system",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "tool_response": "tool",
    "ipython": "tool",
}
_CALLING = ("function_call", "tool_call")
_MARKER = re.compile(r"(<image>|<video>)")
_NOUNS = {"image": "picture", "video": "clip"}
_PART_KEYS = ("text", "image", "video", "image_url", "video_url")
_FILE_KEYS = frozenset({"image", "images", "video", "videos", "media"})
_SYSTEM_KEYS = ("system", "system_prompt")
_SOUND_KEYS = ("audio", "audios")
_LOSS_KEYS = ("weight", "loss", "train")  # OpenAI's, ms-swift's, Axolotl's
_Kind = Literal["image", "video"]
_KINDS: tuple[_Kind, ...] = ("image", "video")


@dataclass(slots=True)
class _Medium:
    """A medium's place in the conversation; ``field`` is found once all places are known."""

    kind: _Kind
    name: str | None
    what: str
    start: float | None = None
    end: float | None = None
    field: str = ""

    def part(self) -> Part:
        if self.kind == "image":
            return ImagePart(self.field)
        return VideoPart(self.field, self.start, self.end)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A turn whose media have no field yet; ``fields``: what more is known of it."""

    role: str
    items: list[TextPart | _Medium]
    loss: bool
    fields: dict[str, Any]

    def turn(self) -> Turn:
        parts = tuple(i.part() if isinstance(i, _Medium) else i for i in self.items)
        return Turn(self.role, parts, self.loss, **self.fields)


def chat(sample: Sample, options: FormatOptions) -> Document:
    """A document of turns. No assistant turn with text or a call: filtered."""
    field = options.string("json_field") or "json"
    what = f"member {sample.member_name(field)!r}"
    data = sample.json(field)
    turns = read_turns(sample, data, what, options.string("messages_key"))
    tools = read_tools(data.get("tools"), f"{what}: 'tools'") if isinstance(data, dict) else ""
    return with_targets(Document(turns=turns, tools=tools), what)


def with_targets(document: Document, what: str) -> Document:
    """The document, unless no assistant turn of it has text or a call: then it is filtered."""
    for turn in document.turns:
        if turn.loss and (turn.calls or has_text(turn.parts)):
            return document
    raise no_text(f"{what}: no assistant turn that is trained on has text")


def read_turns(
    sample: Sample, data: Any, what: str, key: str | None = None, *, alone: bool = True
) -> tuple[Turn, ...]:
    """One conversation, of any of the shapes above. Raises SampleError.

    Args:
        sample: whose members its media are.
        data: the messages, or the object that has them.
        what: where it was read, for messages.
        key: of the messages; None: any known one.
        alone: whether it is the sample's only one: then files that it doesn't list are its own.
    """
    head = data if isinstance(data, dict) else {}
    messages, what = _messages(data, what, key)
    turns = [
        _usual(said, what, at) or _turn(said, f"{what}[{at}]") for at, said in enumerate(messages)
    ]
    system = _system(head, what, turns[0] if turns and turns[0].role == "system" else None)
    if system:
        turns.insert(0, Turn("system", (TextPart(system),), False))
    for key in _SOUND_KEYS:
        if head.get(key):
            raise malformed(f"{what}: {key!r} lists sound, which is not read: it would be lost")
    drafts = [turn for turn in turns if isinstance(turn, _Draft)]
    if not drafts and len(sample.fields) == 1 and _FILE_KEYS.isdisjoint(head):  # texts alone
        return tuple([turn for turn in turns if isinstance(turn, Turn)])
    media = [item for draft in drafts for item in draft.items if isinstance(item, _Medium)]
    listed = {kind: _listed(head, kind, what) for kind in _KINDS}
    files = {kind: _files(sample, listed[kind], kind, alone) for kind in _KINDS}
    if not files["image"] and all((m.kind, m.name) == ("image", None) for m in media):
        if len(media) == len(files["video"]):  # LLaVA's clips have the marker <image>, too
            for medium in media:
                medium.kind = "video"
    for kind in _KINDS:
        places = [place for place in media if place.kind == kind]
        if places or files[kind]:
            fields = _assign(sample, kind, places, files[kind], alone, what)
            shown = {place.field for place in places}
            for name in listed[kind] or ():
                if fields[name] not in shown:
                    lost = f"{_NOUNS[kind]} {name[:80]!a}, which the JSON lists"
                    raise malformed(f"{what}: no message shows {lost}")
    return tuple([turn.turn() if isinstance(turn, _Draft) else turn for turn in turns])


def exchange(
    sample: Sample, asked: str, answered: str, media: list[Part], what: str
) -> tuple[Turn, Turn]:
    """A question with its media, and its answer.

    The markers of the question must be as many as the media; without markers media come first.
    """
    items = _marked(asked, what)
    places = sum(isinstance(item, _Medium) for item in items)
    if places not in (0, len(media)):
        raise malformed(
            f"{what}: {places} markers for {len(media)} media; the sample has {sample.describe()}"
        )
    left = iter(media)
    parts = [] if places else media
    parts = [*parts, *(i if isinstance(i, TextPart) else next(left) for i in items)]
    return Turn("user", tuple(parts), False), Turn("assistant", (TextPart(answered),), True)


def count_markers(text: str) -> int:
    """Places for media in a text."""
    return len(_MARKER.findall(text))


def _messages(data: Any, what: str, key: str | None) -> tuple[list[Any], str]:
    if key is None and isinstance(data, list):
        return data, what
    head = checked_object(data, what)
    wanted = MESSAGE_KEYS if key is None else (key,)
    for name in wanted:
        if head.get(name) is not None:
            return checked_list(head[name], f"{what}: {name!r}"), f"{what}: {name!r}"
    raise malformed(f"{what}: no key {' or '.join(map(repr, wanted))} with the list of messages")


def _usual(message: Any, what: str, at: int) -> Turn | None:
    """A message of a role and a text without markers, as `_turn` reads it; None: it is more."""
    if not isinstance(message, dict) or len(message) != 2:
        return None
    said, text = message.get("role"), message.get("content")
    if said is None:
        said, text = message.get("from"), message.get("value")
    role = _ROLES.get(said) if isinstance(said, str) and said not in _CALLING else None
    if role is None or not isinstance(text, str):
        return None
    if "<" in text and ("<image>" in text or "<video>" in text):
        return None
    if not text.isascii():
        checked_text(text, f"{what}[{at}] content")
    return Turn(role, (TextPart(text),) if text else (), role == "assistant")


def _turn(value: Any, what: str) -> _Draft:
    """A message, whose media have no field yet."""
    message = checked_object(value, what)
    said = message["role"] if "role" in message else message.get("from")
    role = _ROLES.get(said) if isinstance(said, str) else None
    if role is None:
        shown = f"{said[:40]!a}" if isinstance(said, str) else kind_of(said)
        raise malformed(f"{what}: role {shown} is not one of {', '.join(_ROLES)}")
    content = message["content"] if "content" in message else message.get("value")
    calls, reasoning = read_calls(message, what), read_reasoning(message, what)
    if said in _CALLING:
        if calls:
            raise malformed(f"{what}: a turn {said!r} with calls beside its text")
        thought, calls = read_function_call(checked_text(content, f"{what} content"), what)
        reasoning, content = reasoning or thought, None
    if role != "assistant" and (calls or reasoning):
        extra = "calls" if calls else "reasoning"
        raise malformed(f"{what}: {extra} in a turn of role {said!r}, expected the assistant's")
    fields: dict[str, Any] = {}
    if role == "assistant":
        fields |= {"reasoning": reasoning, "calls": calls}
    elif role == "tool":
        identity = checked_text(message.get("tool_call_id"), f"{what} 'tool_call_id'")
        fields |= {"call_id": identity, "name": checked_text(message.get("name"), f"{what} 'name'")}
    if isinstance(content, list):
        items = [_content(item, f"{what} content[{at}]") for at, item in enumerate(content)]
    else:
        items = _marked(checked_text(content, f"{what} content"), what)
    return _Draft(role, items, _trained(message, role, what), fields)


def _marked(text: str, what: str) -> list[TextPart | _Medium]:
    items: list[TextPart | _Medium] = []
    for piece in _MARKER.split(text) if "<" in text else (text,):
        if piece == "<image>":
            items.append(_Medium("image", None, what))
        elif piece == "<video>":
            items.append(_Medium("video", None, what))
        elif piece:
            items.append(TextPart(piece))
    return items


def _content(value: Any, what: str) -> TextPart | _Medium:
    if isinstance(value, str):
        return TextPart(checked_text(value, what))
    item = checked_object(value, what)
    kind = item.get("type")
    if kind is None:
        given = [name for name in _PART_KEYS if name in item]
        kind = next((name for name in given if item[name] is not None), next(iter(given), None))
    if kind == "text":
        return TextPart(checked_text(item.get("text"), f"{what} 'text'"))
    if kind in ("image", "image_url"):
        return _Medium("image", _name(item, "image", what), what)
    if kind in ("video", "video_url"):
        place = _Medium("video", _name(item, "video", what), what)
        if item.get("video_start") is not None or item.get("video_end") is not None:
            place.start, place.end = window(item.get("video_start"), item.get("video_end"), what)
        return place
    shown = f"{kind[:40]!a}" if isinstance(kind, str) else kind_of(kind)
    raise malformed(f"{what} is of type {shown}, expected text, image or video")


def _name(item: dict[str, Any], kind: str, what: str) -> str | None:
    for key in (kind, f"{kind}_url", "url", "path"):
        value = item.get(key)
        if isinstance(value, dict):
            value = value.get("url")
        if value is not None:
            return _checked_name(value, f"{what} {key!r}")
    return None


def _checked_name(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise malformed(f"{what} is {kind_of(value)}, expected the name of a member")
    if value.startswith("data:"):
        raise malformed(
            f"{what} holds the medium itself, and not as base64 of a known kind of file"
        )
    return value.removeprefix("file://")


def _system(head: dict[str, Any], what: str, turn: Turn | _Draft | None) -> str:
    """The system text beside the messages; none if their own system turn says the same."""
    texts = [checked_text(head.get(key), f"{what}: {key!r}") for key in _SYSTEM_KEYS]
    given = {text for text in texts if text}
    if turn is not None and given:
        parts = turn.items if isinstance(turn, _Draft) else turn.parts
        given.add("".join(part.text for part in parts if isinstance(part, TextPart)))
    if len(given) > 1:
        raise malformed(f"{what}: it has {len(given)} system texts, which say different things")
    return "" if turn is not None else "".join(given)


def _trained(message: dict[str, Any], role: str, what: str) -> bool:
    """Whether a message is trained on: an assistant's, unless it says itself that it isn't."""
    given = {key: message[key] for key in _LOSS_KEYS if message.get(key) is not None}
    for key, value in given.items():
        if value not in (0, 1):  # false and true are these
            raise malformed(f"{what}: {key!r} is {str(value)[:40]!a}, expected 0, 1 or true, false")
    return role == "assistant" and all(given.values())


def _listed(head: dict[str, Any], kind: _Kind, what: str) -> list[str] | None:
    """The files of ``kind`` that the JSON lists; None if it doesn't say."""
    value: Any = None
    given = [key for key in (kind, f"{kind}s") if head.get(key) not in (None, "", [])]
    if len(given) > 1 and _names(head, given[0]) != _names(head, given[1]):
        raise malformed(f"{what}: {given[0]!r} and {given[1]!r} list different files")
    for key in (kind, f"{kind}s"):
        value = head.get(key)
        if key in given or (not given and value not in (None, "")):
            break
    else:
        key, value = "name", head.get("name") if "media" in head else None
        if value is not None and head.get("media") != kind:
            value = []
    if value in (None, ""):
        return None
    return _names({key: value}, key)


def _names(head: dict[str, Any], key: str) -> list[str]:
    names = head[key] if isinstance(head[key], list) else [head[key]]
    return [_checked_name(_inner(name), f"{key!r}[{at}]") for at, name in enumerate(names)]


def _files(sample: Sample, listed: list[str] | None, kind: _Kind, alone: bool) -> list[str]:
    """The files of ``kind`` for places without a name: those listed, else the sample's own."""
    if listed is None:
        listed = list(_own(sample, kind)) if alone else []
    return listed


def _own(sample: Sample, kind: _Kind) -> tuple[str, ...]:
    return sample.image_fields() if kind == "image" else sample.video_fields()


def _inner(value: Any) -> Any:
    """The name inside of ``{"path": name}`` or ``{"url": name}``."""
    return value.get("path") or value.get("url") if isinstance(value, dict) else value


def _assign(
    sample: Sample, kind: _Kind, places: list[_Medium], files: list[str], alone: bool, what: str
) -> dict[str, str | None]:
    """Give each place its field; SampleError when places and files don't match one to one.

    Returns the field of each name, None where that is no member's.

    If no name means a member, and there are as many names as files, these are taken in order.
    """
    open_places = [place for place in places if place.name is None]
    if open_places or not places:
        if len(open_places) != len(files):
            raise malformed(
                f"{what}: {len(open_places)} <{kind}> markers for {len(files)} {_NOUNS[kind]}s; "
                f"the sample has {sample.describe()}"
            )
        for place, name in zip(open_places, files, strict=True):
            place.name = name
    fields = sample.find([*files, *(place.name or "" for place in places)], what)
    own = _own(sample, kind)
    if alone and not any(fields.values()) and len(own) == len(fields):
        fields = dict(zip(fields, own, strict=True))
    for place in places:
        field = fields[place.name or ""]
        if field is None:
            named = f"{(place.name or '')[:80]!a}"
            raise sample.missing(f"{_NOUNS[kind]} {named} that {place.what} names")
        place.field = field
    return fields
