"""Programs that go on and on with the same tensors: each yields what it computed in a step, without end."""

import faulthandler
import math
import resource
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Endless = Callable[[], Iterator[Tensor]]
WIDTH, PAST = 16, 32


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape)


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v


def keys_joined() -> Iterator[Tensor]:
    keys = drawn(1, 1, 1, WIDTH)
    while True:
        key = drawn(1, 1, 1, WIDTH) * (1 + keys.size(2))
        keys = torch.cat([keys, key], 2)
        yield F.scaled_dot_product_attention(key, keys, keys)


def slots_assigned() -> Iterator[Tensor]:
    """A cache of a fixed size, of which a slot is assigned."""
    keys, step = torch.zeros(1, 2, PAST, WIDTH) * 1.0, 0
    while True:
        keys[:, :, step % PAST] = drawn(1, 2, WIDTH) * 0.5
        step += 1
        yield attended(drawn(1, 2, 1, WIDTH), keys, keys)


def residual() -> Iterator[Tensor]:
    x = drawn(1, 4, WIDTH)
    while True:
        x = x + attended(x, x, x) * 0.1
        yield x


def weights_added() -> Iterator[Tensor]:
    total = drawn(1, 1, 4, 4)
    while True:
        x = drawn(1, 1, 4, WIDTH)
        weights = (x @ x.mT / math.sqrt(WIDTH)).softmax(-1)
        total = weights + total
        yield weights @ x


STYLES: dict[str, Endless] = {each.__name__: each for each in (keys_joined, slots_assigned, residual, weights_added)}


def main(name: str, steps: int) -> None:
    """Take many steps with at most 256 MiB more than there are, within ten minutes."""
    faulthandler.dump_traceback_later(600, exit=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**28, resource.RLIM_INFINITY))
    print(total(name, steps))


def total(name: str, steps: int) -> str:
    torch.manual_seed(0)
    return torch.stack([each.double().sum() for each in islice(STYLES[name](), steps)]).sum().item().hex()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
