"""What Typer found wrong, with the name that was probably meant."""

from __future__ import annotations

import re
from typing import Any

from attncli.text import did_you_mean

_NO_CHOICE = re.compile(r"(?:Value error, )?'(?P<given>.*)' is not one of (?P<choices>'.*')\.?", re.DOTALL)
_NO_COMMAND = re.compile(r"No such command '(?P<given>.*)'\.?", re.DOTALL)
# Pydantic's words for a value that is of another type, which name its types.
_TYPES = {
    r"Input should be a valid boolean\b.*": "expected true or false",
    r"Input should be a valid integer\b.*": "expected a whole number",
    r"Unable to parse input string as an integer\b.*": "expected a whole number of fewer digits",
    r"Input should be a valid number\b.*": "expected a number",
    r"Input should be a valid string\b.*": "its bytes are no text",
    "Input should be greater than or equal to": "expected at least",
    "Input should be less than or equal to": "expected at most",
}


def complaint(error: Any) -> str:
    """Return what is wrong with a command line, in one line."""
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    # What is wrong with a flag is not about the variable that it goes before.
    message = re.sub(r" \(env var: '\w+'\)", "", message)
    for words, plain in _TYPES.items():
        message = re.sub(words, plain, message)
    context: Any = getattr(error, "ctx", None)
    hint = ""
    if hasattr(error, "possibilities"):  # an option that does not exist
        known = (name for one in context.command.get_params(context) for name in (*one.opts, *one.secondary_opts))
        message, hint = error.message, did_you_mean(error.option_name, known)
    elif found := _NO_CHOICE.fullmatch(getattr(error, "message", "")):
        hint = did_you_mean(found["given"], re.findall(r"'(.*?)'", found["choices"]))
    elif found := _NO_COMMAND.fullmatch(message):
        hint = did_you_mean(found["given"], context.command.list_commands(context))
    message = " ".join(message.replace("Value error, ", "").split()).rstrip(".")
    return message[:1].lower() + message[1:] + hint
