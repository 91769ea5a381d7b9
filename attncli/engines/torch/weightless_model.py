"""A model without its weights: every parameter is one and the same zero, and products with it are not computed.

Which key a query may attend to follows from the configuration and the tokens. So the model is built as
transformers builds it before it reads the weight files, and stays that way: a model of any size takes the memory
of its activations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from attncli.checkpoints.hub import translate_errors
from attncli.engines.torch.attention_backend import build_with_recorder, set_backend
from attncli.engines.torch.attention_modules import prune_to
from attncli.engines.torch.text_model import on_meta
from attncli.errors import InputError
from attncli.recording.readers.transformers import ATTENTION
from attncli.text import visible

if TYPE_CHECKING:
    from attncli.checkpoints.options import LoadOptions
    from attncli.engines.torch.text_model import TextModel

_ZERO = torch.zeros(())  # what every parameter is a view of
_MOST_BYTES = 2**30  # of buffers, which are no part of a file: a short configuration can ask for any
_PRODUCTS = {"linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "addbmm", "baddbmm", "einsum"}


def blank_model(name: str, part: TextModel, options: LoadOptions) -> Any:
    """Build a checkpoint's model from its configuration alone; its part at `part.path` runs inside `SkipProducts`.

    Raises:
        LoadError: the configuration does not make a model.
        InputError: it makes one that is too large to build.
    """
    part.config.use_cache = False  # as `load_model` has it
    more = {"trust_remote_code": options.trust_remote_code} if part.model_class is None else {}
    with translate_errors(name, "model"):
        model = build_with_recorder(lambda attention: on_meta(part.model_class, part.loaded, attention, **more))
        if part.path:
            prune_to(model, part.path, with_head=False)
        size = sum(buffer.nbytes for buffer in model.buffers() if buffer.is_meta)
        if size > _MOST_BYTES:
            raise InputError(
                f"the configuration of {visible(name)} asks for tables of {size} bytes; attn builds "
                f"at most {_MOST_BYTES} bytes"
            )
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    zero = torch.nn.Parameter(_ZERO.expand(parameter.shape), requires_grad=False)
                    zero._is_hf_initialized = True  # type: ignore[attr-defined]
                    module._parameters[key] = zero
            for key, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    module._buffers[key] = torch.zeros_like(buffer, device="cpu")
        model.initialize_weights()  # what is left: the buffers that transformers computes
    set_backend(model.get_submodule(part.path), ATTENTION)
    return model.eval()


class SkipProducts(TorchFunctionMode):
    """Lets products with a blank parameter be zeros of the right shape, without being computed."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See torch.overrides."""
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _PRODUCTS and any(map(_is_blank, (*args, *kwargs.values()))):
            if name == "linear" and len(args) > 1:  # most products, and the slowest on the device without memory
                return args[0].new_zeros(*args[0].shape[:-1], len(args[1]))
            # The shape comes from a run on the device without memory.
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
            return torch.zeros_like(function(*args, **kwargs), device="cpu")
        return function(*args, **kwargs)


def _is_blank(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() == _ZERO.data_ptr()
