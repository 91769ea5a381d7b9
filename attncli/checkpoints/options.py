"""Options of the sources, as the command line and Python name them: toy layer, checkpoints, tokenizers.

A source refuses options that it does not have; nothing is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import Parameter, get_annotations, signature
from typing import Any, Literal, Self, TypeVar, dataclass_transform, get_args

from attncli.errors import UsageError, require
from attncli.text import did_you_mean, visible

_OF_EVERY_SOURCE = ("layer", "head", "mask", "special", "model", "pair", "target")

Engine = Literal["auto", "native", "transformers", "verify"]
Dtype = Literal["auto", "float32", "float16", "bfloat16", "float64"]
Tower = Literal["vision", "text"]
Init = Literal["scaled", "normal", "uniform", "linear", "zeros"]
Project = Literal["qkv", "qk", "none"]
Positions = Literal["none", "sinusoidal"]
Rng = Literal["numpy", "torch"]
PROJECTS: dict[str, tuple[str, ...]] = {"qkv": ("q", "k", "v"), "qk": ("q", "k"), "none": ()}


@dataclass_transform(kw_only_default=True, frozen_default=True)
class OptionValues:
    """Options by name, each with its default: a dataclass without methods, whose making a cold start would pay for."""

    def __init__(self, **chosen: Any) -> None:
        vars(self).update(chosen)
        self.check()

    def check(self) -> None:
        """Refuse values that contradict each other."""

    def check_choices(self, **choices: Any) -> None:
        """Raise UsageError unless options are among the choices of their Literals, or defaults."""
        for name, literal in choices.items():
            value, named = getattr(self, name), get_args(literal)
            if value not in named and value != getattr(type(self), name):
                expected = f"expected one of {', '.join(named)}{did_you_mean(str(value), named)}"
                raise UsageError(f"--{name} '{visible(str(value))}': {expected}")

    @classmethod
    def types(cls) -> dict[str, str]:
        """Return the type of each option, as it is written, those of the bases first."""
        return {name: kind for base in reversed(cls.__mro__) for name, kind in get_annotations(base).items()}

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the options, those of the bases first."""
        return list(cls.types())

    def changed(self, **chosen: Any) -> Self:
        """Return the same options, but for some."""
        return type(self)(**{name: getattr(self, name) for name in self.names()} | chosen)


_Options = TypeVar("_Options", bound=OptionValues)


def checked_options(options: Mapping[str, Any], options_class: type[_Options], owner: str) -> _Options:
    """Return the options of a source; UsageError if one does not exist, or does not apply to it but to `owner`."""
    names = options_class.names()
    for name in sorted(options.keys() - {*names}):
        if name in (*ToyOptions.names(), *EngineOptions.names()):
            raise UsageError(f"--{name.replace('_', '-')} does not apply to {owner}")
        possible = sorted({*_OF_EVERY_SOURCE, *names} - {name})
        raise UsageError(f"no such option: {visible(name)}{did_you_mean(name, possible)}")
    return options_class(**options)


class VocabularyOptions(OptionValues):
    """Options of the vocabulary that reads the text, without a checkpoint."""

    offline: bool = False  # use the local cache only
    vocab: str = "words"  # `words`, or a tokenizer (a tokenizer.json, a folder that holds one, or a hub name)


class TokenizerOptions(OptionValues):
    """Options of loading a checkpoint's tokenizer, and of its treatment of a text."""

    offline: bool = False  # use the local cache only
    trust_remote_code: bool = False  # run the Python code that the checkpoint brings
    truncate: bool = False  # cut a text to the tokens that the model has positions for
    chat: bool = False  # read a sentence as a user's turn, through the checkpoint's chat template
    tokenizer: str | None = None  # folder or hub name of another tokenizer; None is the checkpoint's own
    ids: bool = False  # read a text as token ids, such as `101 2051 102`
    base: str | None = None  # folder or hub name of the model under an adapter; None is the one that the adapter names


class LoadOptions(TokenizerOptions):
    """Options of loading a checkpoint; the fields are the command's options."""

    dtype: Dtype | None = None  # of the weights; None is float32 on the CPU and the checkpoint's own on an accelerator
    device: str = "cpu"  # device of the model
    device_map: str | None = None  # accelerate's map of the model to several devices, such as `auto`

    def check(self) -> None:
        """Refuse impossible values before anything is loaded."""
        if self.device_map is not None:
            if self.device != "cpu":
                raise UsageError("--device and --device-map both set where the model runs; drop one of them")
            require("--device-map", "accelerate")
        self.check_choices(dtype=Dtype)


class EngineOptions(LoadOptions):
    """Options of the engine that computes a checkpoint, and of loading that."""

    # `native`, in NumPy, for the common families; `transformers`; `auto`, the native one where it gives the same
    # numbers; or `verify`, both, which shows how far they are apart
    engine: Engine = "auto"
    # files of the pictures that a model reads with each text; an empty list: those that the text itself names
    image: str | Sequence[str] | None = None
    tower: Tower | None = None  # part of a model that reads pictures too; the texts of `vision` are names of pictures

    def check(self) -> None:
        """Refuse impossible values before anything is loaded."""
        super().check()
        self.check_choices(engine=Engine, tower=Tower)


_LARGEST = 100_000_000  # numbers in one weight matrix; a typing slip should not fill the memory


class ToyOptions(VocabularyOptions):
    """Options of making the toy layer; the fields are the command's options."""

    d_model: int = 32  # width of the embeddings
    num_heads: int | None = None  # heads; None is 4, or 1 without projections, where all heads would be the same
    d_k: int | None = None  # query/key width of each head; None is d_model / num_heads
    d_v: int | None = None  # value width of each head; None is d_model / num_heads
    # how weights are drawn; None is `scaled`: N(0, 1/d_model), `normal` N(0, 1), `uniform` U[0, 1), `linear`
    # nn.Linear's default with its bias, `zeros`
    init: Init | None = None
    project: Project = "qkv"  # which of Q, K, V are projected; the rest are the embeddings themselves
    positions: Positions = "none"  # `sinusoidal` adds the encoding of Vaswani et al. 2017, section 3.5
    scale: Literal["sqrt", "none"] | float = "sqrt"  # `sqrt` is 1/√d_k, `none` is 1, or a number
    seed: int = 0  # seed of the draws
    rng: Rng = "numpy"  # library of the random numbers
    # size of the vocabulary, which is how many rows torch's embedding has; None is the number of words, or of the
    # tokenizer's tokens
    vocab_size: int | None = None
    # whether the concatenated heads are projected by W_o; None is yes, unless nothing is projected
    out_proj: bool | None = None

    def check(self) -> None:
        """Refuse impossible layers, before anything is drawn."""
        if not isinstance(self.vocab, str):
            raise UsageError("--vocab: expected words, or a tokenizer.json, its folder or its hub name")
        self.check_choices(init=Init, project=Project, positions=Positions, rng=Rng)
        for name in ("d_model", "num_heads", "d_k", "d_v", "vocab_size"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"--{name.replace('_', '-')} {value}: expected 1 or more")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed {self.seed}: expected 0 to 2^63 - 1")
        for name, is_projected in (("d_k", self.project != "none"), ("d_v", self.project == "qkv")):
            width = getattr(self, name)
            if width is None and is_projected and self.d_model % self.heads:
                why = f"--d-model {self.d_model} does not divide into {self.heads} heads"
                raise UsageError(f"{why}; give --d-k and --d-v, or another --num-heads")
            if width not in (None, self.d_model) and not is_projected:
                where = f"--project {self.project}, where it is d_model, {self.d_model}"
                raise UsageError(f"--{name.replace('_', '-')} does not apply to {where}")
        if self.init is not None and self.project == "none" and not self.has_out_projection:
            raise UsageError("--init does not apply to --project none, which has no weights; drop one of them")
        rows = max(self.vocab_size or 1, self.heads * self.key_width, self.heads * self.value_width)
        if rows * self.d_model > _LARGEST:
            raise UsageError(f"these sizes make a matrix of over {_LARGEST:,} numbers; give smaller ones")
        self.scale_factor  # noqa: B018  a scale that is no number is refused here

    @property
    def heads(self) -> int:
        """`H`."""
        return self.num_heads or (1 if self.project == "none" else 4)

    @property
    def key_width(self) -> int:
        """`D`."""
        return self.d_model if self.project == "none" else self.d_k or self.d_model // self.heads

    @property
    def value_width(self) -> int:
        """`Dv`."""
        return self.d_v or self.d_model // self.heads if self.project == "qkv" else self.d_model

    @property
    def has_out_projection(self) -> bool:
        """Whether there is a W_o."""
        return self.project != "none" if self.out_proj is None else self.out_proj

    @property
    def scale_factor(self) -> float:
        """Factor of q·k."""
        try:
            factor = {"sqrt": 1 / math.sqrt(self.key_width), "none": 1.0}.get(str(self.scale)) or float(self.scale)
        except (TypeError, ValueError):
            factor = math.nan
        if not abs(factor) < 3.4e38:
            shown = visible(str(self.scale))
            raise UsageError(f"--scale '{shown}': expected sqrt, none or a number that float32 holds")
        return factor


# --- signatures of the Python functions, whose `**options` editors, `help` and notebooks list --------------

Choice = str | int | Iterable[int] | None
"""Choice of layers or heads: an index, several, a text such as `2-4`, or `all`; None is all of them."""

Kind = Literal["self", "encoder", "decoder", "cross"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_explicit_signature(*sources: type[OptionValues] | Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Return a decorator that lists the options behind `**options` in the signature of a function."""
    options = {option.name: option for source in sources for option in _options_of(source)}

    def decorated(function: _Function) -> _Function:
        written = signature(function)
        named = [option for option in written.parameters.values() if option.kind is not Parameter.VAR_KEYWORD]
        names = {option.name for option in named}
        parameters = [*named, *(option for name, option in options.items() if name not in names)]
        function.__signature__ = written.replace(parameters=parameters)  # type: ignore[attr-defined]
        return function

    return decorated


def _options_of(source: type[OptionValues] | Callable[..., Any]) -> Iterator[Parameter]:
    if isinstance(source, type) and issubclass(source, OptionValues):
        for name, kind in source.types().items():
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=getattr(source, name), annotation=kind)
    else:
        options = signature(source).parameters.values()
        yield from (option for option in options if option.kind is Parameter.KEYWORD_ONLY)
