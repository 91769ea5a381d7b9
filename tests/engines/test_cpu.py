"""What this machine has: as the system says it, and as much of it as a container may use."""

import os

import pytest

from attncli.engines import cpu


def reads(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    def content(path: str) -> str:
        if (name := os.path.basename(path).replace(".", "_")) not in files:
            raise FileNotFoundError
        return files[name]

    monkeypatch.setattr(cpu, "_read", content)


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


@pytest.mark.parametrize(("limits", "expected"), [
    # 0.8 of 1,000 kB, 200 each
    ({}, 4),
    ({"memory_max": "max", "memory_current": "0"}, 4),
    ({"memory_max": str(900 * 1024), "memory_current": str(300 * 1024)}, 2),
    ({"memory_max": str(900 * 1024), "memory_current": str(500 * 1024), "files": str(200 * 1024)}, 2),
    ({"memory_max": str(2**40), "memory_current": "0"}, 4), ({"memory_max": "9", "memory_current": "9"}, 1),
])  # fmt: skip
def test_memory_limits_the_workers(monkeypatch: pytest.MonkeyPatch, limits: dict[str, str], expected: int) -> None:
    has_cores(monkeypatch, 64)
    own = {"meminfo": "MemTotal: 9000 kB\nMemAvailable: 1000 kB\n", "status": "Name: attn\nRssAnon:\t200 kB\n"}
    held = {"memory_stat": f"anon 5\ninactive_file {limits.pop('files', '0')}\n"}
    reads(monkeypatch, **own, **limits, **held)
    assert cpu.affordable() == expected
