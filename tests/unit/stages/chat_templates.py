"""Chat templates that behave like those of well-known models, in as few lines as that takes."""

from __future__ import annotations

_CALLS = """
{%- for call in m.tool_calls or [] %}
{%- if (loop.first and content) or not loop.first %}{{- '\\n' }}{%- endif %}
{%- if call.function %}{%- set call = call.function %}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{%- if call.arguments is string %}{{- call.arguments }}{%- else %}
{{- call.arguments | tojson }}{%- endif %}{{- '}\\n</tool_call>' }}
{%- endfor %}"""

_ANSWERS = """
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}
{%- endif %}{{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}"""

_TOOLS = """
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}"""

_ASK = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"

QWEN2_5 = (
    _TOOLS
    + """
{%- for m in messages %}{%- set content = m.content %}
{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}
{{- '<|im_start|>' + m.role + '\\n' + content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant\\n' + content }}"""
    + _CALLS
    + "{{- '<|im_end|>\\n' }}{%- elif m.role == 'tool' %}"
    + _ANSWERS
    + "{%- endif %}{%- endfor %}"
    + _ASK
)

QWEN3 = (
    _TOOLS
    + """
{%- set ns = namespace(open=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{%- if ns.open and m.role == 'user' and m.content is string
  and not (m.content.startswith('<tool_response>') and m.content.endswith('</tool_response>')) %}
{%- set ns.open = false %}{%- set ns.last = messages|length - 1 - loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in messages %}{%- set content = m.content if m.content is string else '' %}
{%- if m.role == 'user' %}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{%- set thought = '' %}
{%- if m.reasoning_content is string %}{%- set thought = m.reasoning_content %}
{%- elif '</think>' in content %}
{%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last and (loop.last or thought) %}
{{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}{{- content }}{%- endif %}"""
    + _CALLS
    + "{{- '<|im_end|>\\n' }}{%- elif m.role == 'tool' %}"
    + _ANSWERS
    + "{%- endif %}{%- endfor %}"
    + _ASK
)

THINKING = QWEN3.replace(_ASK, _ASK.replace("assistant\\n", "assistant\\n<think>\\n"))
"""Asks for the thought, as Qwen3's thinking models do."""

QWEN3_VL = (
    "{%- macro show(content) %}{%- if content is string %}{{- content }}{%- else %}"
    "{%- for part in content %}{%- if part.type == 'image' %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}{%- else %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}{%- endmacro %}"
    + QWEN2_5.replace("set content = m.content", "set content = show(m.content)")
)
"""Shows pictures in any turn, a tool's too."""

MISTRAL = """
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for m in messages %}{%- if m.role == 'user' %}
{%- if tools and m == users[-1] %}{{- '<|tools|>' + (tools | tojson) + '<|/tools|>' }}{%- endif %}
{{- '<|inst|>' + m.content + '<|/inst|>' }}
{%- elif m.tool_calls %}{{- '<|calls|>[' }}{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{- raise_exception('an id has 9 characters') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) }}
{{- ', "id": "' + call.id + '"}' }}{%- if not loop.last %}{{- ', ' }}{%- endif %}{%- endfor %}
{{- ']<|end|>' }}
{%- elif m.role == 'assistant' %}{{- m.content + '<|end|>' }}
{%- elif m.role == 'tool' %}{{- '<|result|>{"content": ' + m.content }}
{{- ', "call_id": "' + m.tool_call_id + '"}<|/result|>' }}{%- endif %}{%- endfor %}"""
"""Asks for nothing, puts tools before the last question, and leaves out texts beside calls."""

STRINGS = QWEN2_5.replace(
    "{%- if call.arguments is string %}{{- call.arguments }}{%- else %}\n"
    "{{- call.arguments | tojson }}{%- endif %}",
    "{{- '' + call.arguments }}",
)
"""Takes arguments as JSON only."""

INLINE = """
{%- for m in messages %}{%- if m.role == 'user' %}
{%- if m.content.startswith('Rain') %}{{- '<|inst|>' }}{%- endif %}
{{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}{{- '<|result|>' + m.content + '<|/result|>' }}
{%- if loop.last or messages[loop.index0 + 1].role == 'user' %}{{- '<|im_end|>' }}{%- endif %}
{%- else %}{%- if messages[loop.index0 - 1].role == 'user' %}{{- '<|im_start|>assistant\\n' }}
{%- endif %}{%- generation %}{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- '<|calls|>' + call.function.name }}
{%- for key, value in call.function.arguments.items() %}{{- key ~ value }}{%- endfor %}
{%- endfor %}{%- if not m.tool_calls or loop.last %}{{- '<|im_end|>' }}{%- endif %}
{%- endgeneration %}{{- '\\n' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Writes tools' answers within the assistant's turn (Gemma 4), and looks into questions."""
