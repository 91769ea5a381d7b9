"""Functions of torch that the program replaced by its own are called as without a watch: as often, with the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from attncli import watch

Q = torch.randn(2, 2, 5, 4)
MODULE = nn.MultiheadAttention(8, 2, batch_first=True).eval()
X = torch.randn(2, 5, 8)


def by_hand(product: Callable[[Tensor, Tensor], Tensor], softmax: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    return lambda: product(softmax(product(Q, Q.mT) / 2), Q)


def of_mha() -> Any:
    own = MODULE
    x = X.transpose(0, 1)
    return F.multi_head_attention_forward(
        x, x, x, 8, 2, own.in_proj_weight, own.in_proj_bias, None, None, False, 0.0, own.out_proj.weight,
        own.out_proj.bias, training=False,
    )[0]  # fmt: skip


PROGRAMS: dict[str, tuple[Any, str, Callable[[], Any]]] = {
    "F.softmax": (F, "softmax", by_hand(torch.matmul, lambda x: F.softmax(x, dim=-1))),
    "Tensor.softmax": (Tensor, "softmax", by_hand(torch.matmul, lambda x: x.softmax(-1))),
    "Tensor.__matmul__": (Tensor, "__matmul__", by_hand(lambda a, b: a @ b, lambda x: x.softmax(-1))),
    "torch.einsum": (
        torch, "einsum", by_hand(lambda a, b: torch.einsum("bhij,bhjk->bhik", a, b), lambda x: x.softmax(-1)),
    ),
    "F.dropout": (F, "dropout", by_hand(torch.matmul, lambda x: F.dropout(x.softmax(-1), 0.5))),
    "F.scaled_dot_product_attention": (
        F, "scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(Q, Q, Q, is_causal=True),
    ),
    "F.multi_head_attention_forward": (F, "multi_head_attention_forward", of_mha),
    "F.linear, in a module": (F, "linear", lambda: MODULE(X, X, X)[0]),
    "Tensor.split, of no attention": (Tensor, "split", lambda: (X.split(2), of_mha())[1]),
}  # fmt: skip


class Counting:
    """In the place of a function of torch's; whatever it is called with is noted."""

    def __init__(self, home: Any, name: str) -> None:
        self.home, self.name, self.own = home, name, getattr(home, name)
        self.seen: list[Any] = []

    def __enter__(self) -> "Counting":
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.seen.append((*map(_shape, args), *((name, _shape(value)) for name, value in kwargs.items())))
            return self.own(*args, **kwargs)

        setattr(self.home, self.name, counted)
        return self

    def __exit__(self, *_: object) -> None:
        if self.home is Tensor and hasattr(torch._C.TensorBase, self.name):
            delattr(Tensor, self.name)
        else:
            setattr(self.home, self.name, self.own)


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else value


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_replaced_function_is_called_as_often(name: str, is_before: bool) -> None:
    home, replaced, run = PROGRAMS[name]
    torch.manual_seed(0)
    with Counting(home, replaced) as alone:
        expected = run()
    torch.manual_seed(0)
    counting = Counting(home, replaced)
    if is_before:
        with counting, watch() as calls:
            output = run()
    else:
        with watch() as calls, counting:
            output = run()
    assert counting.seen == alone.seen
    assert torch.equal(output, expected)
    assert calls.calls == 1
    assert calls.notes == []


def test_a_function_of_the_programs_own_that_asks_modes_is_called() -> None:
    """As libraries do whose functions can be overridden: it is no function of torch's that was replaced."""
    seen = []

    def attend(x: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((x,)):
            return torch.overrides.handle_torch_function(attend, (x,), x)  # type: ignore[no-any-return]
        seen.append(1)
        return F.scaled_dot_product_attention(x, x, x)

    with watch() as calls:
        assert torch.equal(attend(Q), F.scaled_dot_product_attention(Q, Q, Q))
    assert len(seen) == 1
    assert calls.calls >= 1
