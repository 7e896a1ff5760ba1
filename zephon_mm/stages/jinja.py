"""Chat templates as transformers compiles them: sandboxed, blocks trimmed; but without a clock.

``{% generation %}`` blocks, which say what the assistant writes, become plain blocks, or blocks
between two marks.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}{{ placeholders[part.type] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What Qwen's own templates write, less their default system turn; it has no place for tools."""

_GENERATION = re.compile(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}")


def has_generation(source: str) -> bool:
    """Whether the template marks what the assistant writes."""
    return _GENERATION.search(source) is not None


class Template:
    """A compiled template: Jinja's own, less what its ``render`` does anew at every call."""

    def __init__(self, template: jinja2.Template) -> None:
        self._template = template
        self._globals = dict(template.globals)
        self._context = template.environment.context_class

    def render(self, **variables: Any) -> str:
        """What the template writes. Raises whatever it raises."""
        template = self._template
        known = {**self._globals, **variables}
        context = self._context(template.environment, known, template.name, template.blocks)
        return "".join(template.root_render_func(context))


@lru_cache(maxsize=16)
def compile_template(source: str, *, marked: bool = False) -> Template:
    """The template, compiled once. ``marked``: generation stands between the marks.

    Raises jinja2.TemplateSyntaxError.
    """

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    source = _GENERATION.sub(_with_marks if marked else _bare, source)
    return Template(environment.from_string(source))


def _bare(match: re.Match[str]) -> str:
    before, end, after = match.groups()
    return f"{{%{before} {'endif' if end else 'if true'} {after}%}}"


def _with_marks(match: re.Match[str]) -> str:
    before, end, after = match.groups()
    first, mark = ("endif", "mark_end") if end else ("if true", "mark_start")
    return f"{{%{before} {first} %}}{{{{ {mark} }}}}{{% if true %}}{{% endif {after}%}}"
