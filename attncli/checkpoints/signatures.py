"""The options of the Python functions, each with its type and its default, for editors, type checkers and `help`.

A function writes `**options: Unpack[SourceKeywords]`, which a type checker and an editor read, and is decorated with
`spelling_out`, so that `inspect.signature`, `help` and a notebook list the same options with their defaults. An
option is explained at its default: in the classes of `attncli.checkpoints.options`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import Parameter, signature
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

from attncli.checkpoints.options import Dtype, Engine, Init, OptionValues, Positions, Project, Rng, Tower

Choice = str | int | Iterable[int] | None
"""Choice of layers or heads: an index, several, a text such as `2-4`, or `all`; None is all of them."""

Kind = Literal["self", "encoder", "decoder", "cross"]


class _TokenizerKeywords(TypedDict, total=False):
    """Options of a checkpoint's tokenizer; see `attncli.checkpoints.options.TokenizerOptions`."""

    offline: bool
    trust_remote_code: bool
    truncate: bool
    chat: bool
    base: str | None


class LoadKeywords(_TokenizerKeywords, total=False):
    """Options of loading a checkpoint; see `attncli.checkpoints.options.LoadOptions`."""

    dtype: Dtype | None
    device: str
    device_map: str | None


class PredictorKeywords(LoadKeywords, total=False):
    """Options of running a causal language model for its predictions; see `attncli.checkpoints.options`."""

    engine: Engine
    image: str | Sequence[str] | None


class MakingKeywords(LoadKeywords, total=False):
    """Options of making the toy layer, or of running a checkpoint; see `ToyOptions` and `EngineOptions`."""

    engine: Engine
    image: str | Sequence[str] | None
    tower: Tower | None
    d_model: int
    num_heads: int | None
    d_k: int | None
    d_v: int | None
    init: Init | None
    project: Project
    positions: Positions
    scale: Literal["sqrt", "none"] | float
    seed: int
    rng: Rng
    vocab: str
    vocab_size: int | None
    out_proj: bool | None


class SourceKeywords(MakingKeywords, total=False):
    """Options of a source that is run on a sentence: those of `open_source` but for the choice of layers."""

    head: Choice
    kind: Kind | None
    mask: str | None
    special: bool
    generate: int


class InspectKeywords(SourceKeywords, total=False):
    """The same, with the choice of layers."""

    layer: Choice


class VocabularyKeywords(_TokenizerKeywords, total=False):
    """Options of the toy layer's vocabulary, or of a checkpoint's tokenizer; see `attncli.checkpoints.options`."""

    vocab: str


class TokenizeKeywords(VocabularyKeywords, total=False):
    """The same, with the choice of added tokens."""

    special: bool


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _defaults(home: type[OptionValues] | Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    if isinstance(home, type) and issubclass(home, OptionValues):
        yield from ((name, getattr(home, name)) for name in home.names())
    else:
        yield from ((name, parameter.default) for name, parameter in signature(home).parameters.items())


def spelling_out(keywords: type, *homes: type[OptionValues] | Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the options behind `**options` in the signature of a function.

    Args:
        keywords: the options, a TypedDict.
        homes: where their defaults are. The options are listed in their order.
    """
    types = get_type_hints(keywords)
    defaults = {name: default for home in homes for name, default in _defaults(home)}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
        for name, default in defaults.items()
        if name in types
    ]

    def decorated(function: _Function) -> _Function:
        written = signature(function)
        named = [parameter for parameter in written.parameters.values() if parameter.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = written.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
        return function

    return decorated
