"""Cores and memory as the system states them, threads as the user says, and the same digits on any number of them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import threadpool_info, threadpool_limits
from torch.nn.functional import scaled_dot_product_attention
from traces import layer_of

from attncli.engines import cpu
from attncli.engines.cpu import LONG, cores, parallel_for, thread_count, use_all_cores
from attncli.engines.numpy.forward import attention_output
from attncli.masks.expressions import RuleMask
from attncli.masks.parser import parse

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def unsaid(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("blas", "omp", "expected"),
    [("3", "", 3), ("", "5", 5), ("", "2,1", 2), ("3", "5", 3), ("", "0", None), ("", "many", None), ("", "", None)],
)
def test_threads_as_the_user_says(blas: str, omp: str, expected: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(VARIABLES, (blas, omp), strict=True):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    assert thread_count() == (expected or cores())


def threads_of(tokens: int) -> tuple[set[int], list[int]]:
    seen: set[int] = set()
    with use_all_cores(tokens):
        together = threading.Barrier(2, timeout=60) if tokens > LONG and thread_count() == 2 else None

        def work(item: int) -> None:
            if together is not None:
                together.wait()
            seen.add(threading.get_ident())
            parallel_for(seen.add, [threading.get_ident()])  # work within work does not wait for itself

        parallel_for(work, range(4))
        return seen, [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_a_long_text_has_threads_and_a_short_one_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    own = {threading.get_ident()}
    with threadpool_limits(2, user_api="blas"):
        before = threads_of(LONG)
        assert before[0] == own
        seen, of_blas = threads_of(LONG + 1)
        assert len(seen) == 2
        assert not seen & own
        assert set(of_blas) == {1}
        assert threads_of(LONG)[1] == before[1]  # it has its own threads back
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(LONG + 1)[0] == own


@pytest.fixture(params=["1", "2", "3"])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OMP_NUM_THREADS", request.param)
    with use_all_cores(LONG + 1):
        yield request.param


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


KNOWN: dict[str, list[np.ndarray]] = {}

TOKENS = LONG + 44
MASKS = ["full", "window(5)", "window(200)", "causal | prefix(40)", "docs(100,150,50)", "causal & pad(left=3)"]


@pytest.mark.parametrize("mask", MASKS)
def test_the_output_of_a_long_text_is_that_of_torch(mask: str, threads: str) -> None:
    q, (k, v) = random(4, TOKENS, 8), random(2, 2, TOKENS, 8)
    rule, least = RuleMask(parse(mask), TOKENS, TOKENS, 4), float(np.finfo(np.float32).min)
    layer = layer_of(q, k, v, rule, 0.7, fill=least)
    allowed = torch.from_numpy(layer.mask.rows([0], np.arange(TOKENS)))
    query, key, value = (torch.from_numpy(each).double() for each in (q, k, v))
    bias = torch.where(allowed, 0.0, least).double()  # a row without a key is uniform
    expected = scaled_dot_product_attention(query[None], key[None], value[None], bias, scale=0.7, enable_gqa=True)[0]
    found = attention_output(layer)
    assert_allclose(found, expected.numpy(), atol=2e-6)
    assert_array_equal(found, KNOWN.setdefault(mask, [found])[0])


def reads(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    def content(path: Path, encoding: str) -> str:
        if (name := path.name.replace(".", "_")) not in files:
            raise FileNotFoundError
        return files[name]

    monkeypatch.setattr(Path, "read_text", content)


def has_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [(None, 8), ("max 100000", 8), ("200000 100000", 2), ("50000 100000", 1), ("9900000 100000", 8)],
)
def test_a_container_may_use_fewer_cores(monkeypatch: pytest.MonkeyPatch, quota: str | None, expected: int) -> None:
    has_cores(monkeypatch, 8)
    reads(monkeypatch, **({} if quota is None else {"cpu_max": quota}))
    assert cpu.cores() == expected
