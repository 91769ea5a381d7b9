"""Renders chat templates as transformers does, in a process of its own whose time and memory are limited.

<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/utils/chat_template_utils.py>

Jinja's sandbox keeps a template from files and code, not from loops and growing values, which end this process alone.
A line of standard input is a request in JSON: `source`, and to render it `messages`, `special` and `asks`; without
messages the template is compiled alone. A line of standard output is the answer: `text`, or the `error`.
"""

import json
import re
import signal
import sys
import time
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 5  # of the processor, for each request
MEMORY = 1 << 30
_LONGEST_TEXT, _EACH = 1 << 20, 16  # characters that one may write, and how many more for each of the messages
# The `generation` block of an assistant's messages is rendered as its content, in a scope of its own.
_GENERATION = re.compile(r"({%[-+]?\s*)(?:generation|(end)generation)(\s*[-+]?%})")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _as_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


@lru_cache(maxsize=1)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _as_json
    environment.globals |= {"raise_exception": _raise, "strftime_now": lambda form: datetime.now().strftime(form)}
    plain = _GENERATION.sub(lambda tag: f"{tag[1]}{'endwith' if tag[2] else 'with'}{tag[3]}", source)
    return environment.from_string(plain)


def _rendered(
    source: str, messages: list[dict[str, Any]] | None = None, special: dict[str, str] | None = None, asks: bool = False
) -> str:
    template, options = _compiled(source), {"tools": None, "documents": None, "add_generation_prompt": asks}
    if messages is None:
        return ""
    text = template.render(messages=messages, **options, **(special or {}))
    if len(text) > (most := _LONGEST_TEXT + _EACH * len(json.dumps(messages))):
        raise TemplateError(f"it writes {len(text):,} characters; at most {most:,} are read")
    return text


def _limit() -> None:
    """Let the system end this process where the next request takes too long."""
    with suppress(ImportError):  # which not every system has
        import resource

        seconds = int(time.process_time()) + 1 + SECONDS
        for what, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CPU, seconds)):
            with suppress(ValueError, OSError):  # of a system that does not limit this, or has a lower limit
                resource.setrlimit(what, (most, resource.getrlimit(what)[1]))


def _main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller ends this process by closing its input
    for line in sys.stdin:
        _limit()
        try:
            answer = {"text": _rendered(**json.loads(line))}
        except MemoryError:
            answer = {"error": "it builds something far too large"}
        except RecursionError:
            answer = {"error": "it nests too deeply, or calls itself without end"}
        except Exception as error:  # a template is a program, which may go wrong in any way
            answer = {"error": str(error) or type(error).__name__}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
