"""Chat templates in Jinja's sandbox, with the filters and functions that transformers gives them.

<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/utils/chat_template_utils.py>
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

# The `generation` block of an assistant's messages is rendered as its content, in a scope of its own.
_GENERATION = re.compile(r"({%[-+]?\s*)(?:generation|(end)generation)(\s*[-+]?%})")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def compiled(source: str) -> Template:
    """Compile a template, which reaches neither files nor code; it may raise nearly anything, as where it renders."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _as_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    plain = _GENERATION.sub(lambda tag: f"{tag[1]}{'endwith' if tag[2] else 'with'}{tag[3]}", source)
    return environment.from_string(plain)
