"""Chat templates of model families as their model cards describe them, in this project's words.

They write what the families' own templates write for messages, calls of tools and their answers;
how tools are described is shortened.
"""

from __future__ import annotations

LLAMA3 = """{{- bos_token }}{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{%- if strftime_now is defined %}{%- set date = strftime_now('%d %b %Y') %}
{%- else %}{%- set date = '26 Jul 2024' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\n' }}
{%- if tools %}{{- 'Environment: ipython\\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\\nToday Date: ' + date + '\\n\\n' }}
{{- system + '<|eot_id|>' }}
{%- if tools %}{{- '<|start_header_id|>user<|end_header_id|>\\n\\nGiven the following functions' }}
{%- for tool in tools %}{{- '\\n\\n' + tool | tojson(indent=4) }}{%- endfor %}
{{- '\\n\\n' + messages[0].content | trim + '<|eot_id|>' }}
{%- set messages = messages[1:] %}{%- endif %}
{%- for message in messages %}
{%- if message.role in ('tool', 'ipython') %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{%- if message.content is mapping or message.content is iterable %}
{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}{{- '<|eot_id|>' }}
{%- elif message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", ' }}
{{- '"parameters": ' + call.arguments | tojson + '}<|eot_id|>' }}
{%- else %}{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{{- message.content | trim + '<|eot_id|>' }}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"""
"""Llama 3.1 to 3.3: tools in the first question, one call a turn, answers as JSON."""

MISTRAL = """{%- if messages[0].role == 'system' %}
{%- set system, talk = messages[0].content, messages[1:] %}
{%- else %}{%- set talk = messages %}{%- endif %}
{%- set users = talk | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}{%- for m in talk %}
{%- if not (m.role == 'tool' or m.role == 'tool_results' or m.tool_calls) %}
{%- if (m.role == 'user') != (ns.index % 2 == 0) %}
{{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}{%- endif %}
{%- set ns.index = ns.index + 1 %}{%- endif %}{%- endfor %}
{{- bos_token }}{%- for m in talk %}
{%- if m.role == 'user' %}{%- if tools and m == users[-1] %}
{{- '[AVAILABLE_TOOLS]' + tools | tojson + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{%- if loop.last and system is defined %}{{- '[INST]' + system + '\\n\\n' + m.content }}
{%- else %}{{- '[INST]' + m.content }}{%- endif %}{{- '[/INST]' }}
{%- elif m.tool_calls %}{{- '[TOOL_CALLS]LEAD[' }}{%- for call in m.tool_calls %}
{%- set out = call.function | tojson %}{{- out[:-1] }}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}
{{- ', "id": "' + call.id + '"}' + (']' + eos_token if loop.last else ', ') }}{%- endfor %}
{%- elif m.role == 'assistant' %}{{- 'LEAD' + m.content + eos_token }}
{%- else %}{{- '[TOOL_RESULTS]LEAD{"content": ' + m.content | string + ', "call_id": "' }}
{{- m.tool_call_id + '"}[/TOOL_RESULTS]' }}{%- endif %}{%- endfor %}"""
MISTRAL_NEMO = MISTRAL.replace("LEAD", "")
"""Tools before the last question, and no generation prompt."""
MISTRAL_V3 = MISTRAL.replace("LEAD", " ")
"""The same with a space before what is said."""

HERMES = """{{- bos_token + '<|im_start|>system\\nYou may call: ' }}{%- for tool in tools or [] %}
{{- tool | tojson + '\\n' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- for m in messages %}
{%- if m.role in ('user', 'system') or (m.role == 'assistant' and m.tool_calls is not defined) %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- elif m.role == 'assistant' %}{{- '<|im_start|>assistant' }}{%- for call in m.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson + '}\\n</tool_call>' }}{%- endfor %}{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>tool\\n' }}{%- endif %}
{{- '<tool_response>\\n' + m.content }}
{{- '\\n</tool_response>' if loop.last else '\\n</tool_response>\\n' }}
{%- if not loop.last and loop.nextitem.role != 'tool' or loop.last %}
{{- '<|im_end|>' }}{%- endif %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Hermes 2 Pro and 3: a role of its own for answers."""

GEMMA3 = """{{- bos_token }}{%- if messages[0].role == 'system' %}
{%- set first, talk = messages[0].content + '\\n\\n', messages[1:] %}
{%- else %}{%- set first, talk = '', messages %}{%- endif %}
{%- for m in talk %}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}
{{- first if loop.first else '' }}{{- m.content | trim + '<end_of_turn>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}"""
"""A system turn is written into the first question; no tools."""

GEMMA4 = """{%- macro said(value) %}{%- if value is string %}{{- '<|"|>' + value + '<|"|>' }}
{%- else %}{{- value }}{%- endif %}{%- endmacro %}
{{- bos_token }}{%- set talk = messages %}
{%- if tools or messages[0].role == 'system' %}{{- '<|turn>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content | trim }}
{%- set talk = messages[1:] %}{%- endif %}
{%- for tool in tools or [] %}{{- '<|tool>declaration:' + tool.function.name + '<tool|>' }}
{%- endfor %}{{- '<turn|>\\n' }}{%- endif %}
{%- set ns = namespace(question=-1, before='', kind='') %}
{%- for m in talk %}{%- if m.role == 'user' %}{%- set ns.question = loop.index0 %}{%- endif %}
{%- endfor %}
{%- for m in talk %}{%- if m.role != 'tool' %}{%- set ns.kind = '' %}
{%- if not (m.role == 'assistant' and ns.before == 'assistant') %}
{{- '<|turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}{%- endif %}
{%- if m.reasoning_content and loop.index0 > ns.question %}
{{- '<|channel>thought\\n' + m.reasoning_content + '\\n<channel|>' }}{%- endif %}
{%- for call in m.tool_calls or [] %}{{- '<|tool_call>call:' + call.function.name + '{' }}
{%- for key, value in call.function.arguments | dictsort %}{{- key + ':' + said(value) }}
{%- if not loop.last %}{{- ',' }}{%- endif %}{%- endfor %}{{- '}<tool_call|>' }}
{%- set ns.kind = 'call' %}{%- endfor %}
{%- if m.tool_calls %}{%- set seen = namespace(end=false) %}
{%- for answer in talk[loop.index0 + 1:] %}{%- if answer.role != 'tool' %}
{%- set seen.end = true %}{%- elif not seen.end %}{%- set named = namespace(name=answer.name) %}
{%- for call in m.tool_calls %}{%- if call.id == answer.tool_call_id %}
{%- set named.name = call.function.name %}{%- endif %}{%- endfor %}
{{- '<|tool_response>response:' + named.name + '{value:' + said(answer.content) + '}' }}
{{- '<tool_response|>' }}{%- set ns.kind = 'answer' %}{%- endif %}{%- endfor %}{%- endif %}
{{- m.content | trim }}{%- set later = talk[loop.index0 + 1:] %}
{%- set later = later | rejectattr('role', 'equalto', 'tool') | list %}
{%- set goes_on = m.role == 'assistant' and later and later[0].role == 'assistant' %}
{%- if ns.kind == 'call' %}{{- '<|tool_response>' }}
{%- elif not goes_on and (later or ns.kind != 'answer' or m.content | trim) %}
{{- '<turn|>\\n' }}{%- endif %}
{%- set ns.before = m.role %}{%- endif %}{%- endfor %}
{%- if add_generation_prompt and not ns.kind %}{{- '<|turn>model\\n' }}{%- endif %}"""
"""Answers stand within the model's turn and repeat the tool's name; the turn goes on after them."""

CONTROL = (
    "<|start_header_id|> <|end_header_id|> <|eot_id|> [INST] [/INST] [AVAILABLE_TOOLS] "
    "[/AVAILABLE_TOOLS] [TOOL_CALLS] [TOOL_RESULTS] [/TOOL_RESULTS] <s> </s> <start_of_turn> "
    "<end_of_turn> <|turn> <turn|> <|tool> <tool|> <|tool_call> <tool_call|> <|tool_response> "
    '<tool_response|> <|channel> <channel|> <|"|>'
).split()
"""Control tokens of all of them."""
