"""The line of a program that made a mask, beside the line that used it."""

import inspect
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from whole_program import forked

import attncli
from attncli.analysis.calls.calls import Calls

B, H, T, D = 2, 2, 6, 8
E = H * D
IDS = torch.tensor([[1, 2, 3, 4, 5, 6], [1, 2, 3, 0, 0, 0]])
FUTURE = torch.ones(T, T, dtype=torch.bool).triu(1)  # made before anything is watched


def attend(mask: Tensor) -> Tensor:
    x = torch.randn(B, H, T, D)
    return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)


def by_hand(mask: Tensor) -> Tensor:
    x = torch.randn(B, H, T, D)
    scores = x @ x.mT / D**0.5
    scores = scores.masked_fill(mask == 0, -torch.inf)
    return scores.softmax(-1) @ x


class Gpt(nn.Module):
    """Attention as it is in minGPT; its mask shows one key too many."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(16, 16), 1).view(1, 1, 16, 16))  # <-

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.mT / x.size(-1) ** 0.5
        length = x.size(2)
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        return scores.softmax(-1) @ x


# Programs whose masks are wrong, made at the line with the arrow.


def rows_assigned() -> None:
    seen = torch.zeros(T, T)
    for query in range(T):
        seen[query, :query] = float("-inf")  # <-
    attend(seen)


def written_by_hand() -> None:
    seen = torch.triu(torch.ones(T, T))  # <-
    by_hand(seen)


def buffer() -> None:
    Gpt()(torch.randn(B, H, T, D))


def numbers_of_ones() -> None:
    seen = torch.triu(torch.ones(T, T))  # <-
    mask = (1.0 - seen) * -10000.0
    attend(mask.to(torch.float32))


WRONG = rows_assigned, written_by_hand, buffer, numbers_of_ones


def seen(program: Callable[[], object]) -> Calls:
    with attncli.watch() as calls:
        program()
    assert calls.notes == []
    return calls


def made_at(calls: Calls, code: str = "leak") -> set[tuple[str, ...]]:
    return {one.made_at for one in calls.findings if one.code == code}


def arrow(program: Callable[[], None]) -> str:
    """The line with the arrow, of a program or of the class that it makes."""
    lines, first = inspect.getsourcelines(Gpt if program is buffer else program)
    (line,) = [first + index for index, text in enumerate(lines) if "# <-" in text]
    return f"{Path(__file__).relative_to(Path.cwd())}:{line}"


@pytest.mark.parametrize("program", WRONG, ids=lambda each: each.__name__)
def test_the_line_that_made_a_wrong_mask_is_named(program: Callable[[], None]) -> None:
    found = {line for one in seen(program).findings for line in one.made_at}
    assert found == {arrow(program)}


def changed_behind() -> None:
    mask = torch.ones(T, T, dtype=torch.bool).tril()
    mask.copy_(FUTURE)
    attend(mask)


def made_where_it_is_used() -> None:
    x = torch.randn(B, H, T, D)
    F.scaled_dot_product_attention(x, x, x, attn_mask=torch.ones(T, T, dtype=torch.bool).triu())


@pytest.mark.parametrize("program", [changed_behind, made_where_it_is_used])
def test_no_line_is_named_that_did_not_make_the_mask(program: Callable[[], None]) -> None:
    calls = seen(program)
    assert {one.code for one in calls.findings} & {"leak", "shape"}
    assert {one.made_at for one in calls.findings} == {()}


def test_every_form_names_the_line(folder: Path) -> None:
    (folder / "masks.py").write_text("import torch\n\n\ndef future(n):\n    return torch.ones(n, n).bool().triu()\n")
    (folder / "train.py").write_text(
        textwrap.dedent("""
            import torch, torch.nn.functional as F
            from masks import future
            x = torch.randn(1, 2, 6, 8)
            mask = future(6)
            F.scaled_dot_product_attention(x, x, x, mask)
        """)
    )
    table = forked("run", "train.py")
    assert "return torch.ones(n, n).bool().triu()  <-- mask made at masks.py:5" in table.stderr
    finished = forked("run", "-F", "json", "-o", "calls.json", "train.py")
    assert finished.returncode == 0, finished.stderr
    assert '"made_at": ["masks.py:5"]' in (folder / "calls.json").read_text()
