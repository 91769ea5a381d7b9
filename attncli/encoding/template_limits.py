"""Jinja's sandbox with a limit on what a chat template may compute: counted in steps, whatever a machine's speed.

The sandbox keeps a template from files and code, not from loops, growing strings and nested macros. Rounds of loops,
calls, filters and operators are steps here, and so are a few characters or elements of what they take and make. What
would make something large is charged before it is made.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import Any

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

_STEPS = 1 << 20  # of a template; one that writes a thousand messages takes a tenth of it
_EACH = 32  # steps more for each character that it is given, and each pair of messages
_PARTS = 1 << 15  # of a template: nodes of its tree; the longest of well-known checkpoints have some 5,000
_CALL = 4  # of a call
_PER_STEP = 8  # characters or elements
_BITS = 1 << 16  # of a whole number

# What makes, or looks at, as much as the product of what it is given, and what does so with itself.
_MULTIPLIES = frozenset({
    "batch", "center", "expandtabs", "indent", "join", "ljust", "rfind", "rindex", "rjust", "round", "rpartition",
    "rsplit", "slice", "to_bytes", "tojson", "zfill",
})  # fmt: skip
_SQUARES = frozenset({"pprint", "striptags", "sum", "urlize", "wordwrap"})
_CONSTANT = frozenset({"count", "d", "default", "first", "last", "length"})
_FORMATS = frozenset({"%", "format", "format_map"})
_WIDTH = re.compile(r"(?:%(?:\([^)]*\))?[-+ #0]*|:[^{}\d]*|\.)(\d+)")  # and precisions, in formats of both kinds
_TAKES_WIDTH = re.compile(r"%[^%a-zA-Z]*\*|:[^}]*\{")
_VALUES = (str, bytes, int, float, list, tuple, dict)
_HOLDING = (list, tuple, dict)
_SIZED = (str, bytes, list, tuple, dict, set, frozenset, range)
_left: ContextVar[list[int]] = ContextVar("steps that are left")


class EndlessError(Exception):
    """A template computes more than it may."""


class Given(dict[str, Any]):
    """What a template is given, and cannot have made of itself: an element, whatever is in it."""


@contextmanager
def limited(letters: int, messages: int) -> Iterator[None]:
    """Run templates in a block with the steps that one may take.

    Args:
        letters: how many characters it is given.
        messages: and how many messages, for each of which some look at all.
    """
    before = _left.set([_STEPS + _EACH * (letters + messages**2)])
    try:
        yield
    finally:
        _left.reset(before)


def _spend(steps: int) -> None:
    left = _left.get()
    left[0] -= 1 + steps
    if left[0] < 0:
        raise EndlessError("it computes without end, or something far too large")


def _spend_for(value: Any) -> Any:
    """Return a value that is read whole, with all that is in it."""
    _spend(_weight(value, 1) // _PER_STEP)
    return value


def _made(value: Any) -> Any:
    """Return a value that was made; what is in it may stand there many times and is not copied."""
    _spend(_weight(value, 0) // _PER_STEP)
    return value


def _step(value: Any, steps: int) -> Any:
    _spend(steps)
    return value


def _weight(value: Any, letter: int) -> int:
    """Return how large a value is: a character is 1, where those within count, and an element, also in others, 8."""
    if isinstance(value, str | bytes | range):
        return len(value)
    weight, waiting, most = 0, [value], _left.get()[0] * _PER_STEP
    while waiting and weight <= most:
        one = waiting.pop()
        if isinstance(one, dict) and (letter or not isinstance(one, Given)):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        weight += letter * len(one) if isinstance(one, str | bytes) else _PER_STEP
    return weight


def _cost(name: str, values: list[Any], element: int = 1) -> int:
    """Return how much something by this name reads and makes of values, the first its own, in characters.

    Args:
        name: of a filter, a test, a method or an operator.
        values: what it is given.
        element: how many characters one is worth, which is more where Python and not C looks at each.
    """
    if name in _CONSTANT:
        return 0
    sizes = [len(one) * (1 if isinstance(one, str | bytes) else element) for one in values if isinstance(one, _SIZED)]
    if name in _FORMATS and isinstance(values[0], str | bytes):
        return sum(sizes) + sum(_widths(values[0], values[1:]))
    if name == "replace" and len(values) > 2 and all(isinstance(one, str) for one in values[:3]):
        return len(values[0]) + len(values[2]) * values[0].count(values[1])
    if name not in _MULTIPLIES | _SQUARES or (name == "sum" and len(values) == 1):  # of numbers
        return sum(sizes)
    product = _weight(values[0], 1)
    others = values[1:] if name in _MULTIPLIES else values[:1]
    for one in others:
        product *= 1 + (abs(one) if isinstance(one, int) else _weight(one, 1))
    return product


def _widths(form: str | bytes, values: Iterable[Any]) -> Iterator[int]:
    """Yield the numbers that may be the width of something in a format, or its precision."""
    form = form if isinstance(form, str) else form.decode("latin-1")
    yield from (int(found[:9]) for found in _WIDTH.findall(form))
    if _TAKES_WIDTH.search(form):
        inside = (each.values() if isinstance(each, dict) else each for each in values if isinstance(each, _HOLDING))
        yield from (abs(each) for each in chain(values, *inside) if isinstance(each, int))


def _grown(operator: str, left: Any, right: Any) -> int:
    """Return how large the result of an operator is, in characters or elements."""
    if operator == "%" and isinstance(left, str | bytes):
        return _cost(operator, [left, right])
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if operator in ("*", "**") and bits > _BITS:
            raise EndlessError("it computes a number that is far too large")
        return 1
    weights = [abs(one) if isinstance(one, int) else _weight(one, 0) for one in (left, right)]
    return weights[0] * weights[1] if operator == "*" else sum(weights)


def _counted(name: str, function: Callable[..., Any], element: int) -> Callable[..., Any]:
    """Return a filter or a test that takes its steps."""

    @functools.wraps(function)
    def counted(*values: Any, **named: Any) -> Any:
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0
        own = [*values[passed:], *named.values()]
        if name in _MULTIPLIES | _SQUARES and own and isinstance(own[0], Iterator):
            own[0] = list(own[0])
            values = (*values[:passed], own[0], *values[passed + 1 :])
        _spend(_cost(name, own, element) // _PER_STEP)
        made = function(*values, **named)
        return made if any(made is one for one in own) else _made(made)

    return counted


class LimitedEnvironment(ImmutableSandboxedEnvironment):
    """The environment of templates that run within `limited`."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, filters: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options, finalize=_spend_for)
        self.filters = {name: _counted(name, each, _PER_STEP) for name, each in {**self.filters, **filters}.items()}
        tests: dict[str, Any] = self.tests
        self.tests = {name: _counted(name, each, 1) for name, each in tests.items()}
        self.filters |= {"step ": _step, "read ": _spend_for, "made ": _made}  # which no template can spell
        del self.globals["lipsum"]  # a text at random

    def call(self, context: Any, function: Any, /, *values: Any, **named: Any) -> Any:
        """See `SandboxedEnvironment.call`."""
        own = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if isinstance(own, _VALUES):
            name = getattr(function, "__name__", "")
            if name == "join" and values and isinstance(values[0], Iterator):
                values = (list(values[0]), *values[1:])
            _spend(_cost(name, [own, *values, *named.values()]) // _PER_STEP)
        _spend(_CALL)
        return _made(super().call(context, function, *values, **named))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """See `SandboxedEnvironment.call_binop`."""
        is_usual = type(left) is type(right) is str and operator == "+"
        _spend((len(left) + len(right) if is_usual else _grown(operator, left, right)) // _PER_STEP)
        return super().call_binop(context, operator, left, right)

    def concatenated(self, *values: Any) -> str:
        """Return the texts of values, one behind the other: what `~` is replaced by."""
        return "".join(str(_spend_for(each)) for each in values)

    def _parse(self, *where: Any) -> nodes.Template:
        """Return a template that counts: where something is repeated, made or compared without a call."""
        tree = super()._parse(*where)
        if (parts := sum(1 for _ in tree.find_all(nodes.Node))) > _PARTS:
            raise EndlessError(f"it has {parts:,} parts; at most {_PARTS:,} are read")
        repeated: list[Any] = list(tree.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)))
        for node in repeated:
            steps = nodes.Const(sum(_length(each) for each in node.body) // _PER_STEP)
            counting = _filtered(nodes.Const(None, lineno=node.lineno), "step ", steps)
            node.body.insert(0, nodes.ExprStmt(counting, lineno=node.lineno))
            if isinstance(node, nodes.For) and node.test is not None:
                node.test = _filtered(node.test, "step ", nodes.Const(0))
        _replace(tree)
        tree.set_environment(self)
        return tree


def _length(node: nodes.Node) -> int:
    """Return how much a node writes by itself, and an element for each node in it."""
    data = sum(len(each.data) for each in node.find_all(nodes.TemplateData))
    return data + sum(1 for _ in node.find_all(nodes.Node))


def _filtered(node: Any, name: str, *values: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(values), [], None, None, lineno=node.lineno)


def _replace(node: nodes.Node) -> None:
    """Let literals be counted when they are made, and what is cut, joined or compared when it is read."""
    for field, value in node.iter_fields():
        for place, each in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(each, nodes.Node):
                continue
            _replace(each)
            new = _replaced(each)
            if place is None:
                setattr(node, field, new)
            else:
                value[place] = new


def _replaced(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.List | nodes.Dict) or (isinstance(node, nodes.Tuple) and node.ctx == "load"):
        return _filtered(node, "made ")
    if isinstance(node, nodes.Concat):
        join = nodes.EnvironmentAttribute("concatenated", lineno=node.lineno)
        return nodes.Call(join, node.nodes, [], None, None, lineno=node.lineno)
    if isinstance(node, nodes.Compare):
        node.expr = _filtered(node.expr, "read ")
        for each in node.ops:
            each.expr = _filtered(each.expr, "read ")
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        node.node = _filtered(node.node, "made ")
    return node
