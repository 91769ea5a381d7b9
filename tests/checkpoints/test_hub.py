"""A checkpoint that comes over the network: from a hub of our own, on this machine."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
from hub import NAME, Hub
from running import on_terminal, program, text_shown


@pytest.fixture
def online(tiny_llama: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A hub with one checkpoint, whose weights take their time; the environment of a program that asks it."""
    with Hub({NAME: Path(tiny_llama)}, has_storage=False, pause=0.3) as hub:
        yield hub.environment | {"HF_HOME": str(tmp_path)}


def test_a_download_shows_its_name_and_size_on_a_terminal_and_is_there_afterwards(
    online: dict[str, str], tiny_llama: str, tmp_path: Path
) -> None:
    size = (Path(tiny_llama) / "model.safetensors").stat().st_size
    whole = ("inspect", "-m", NAME, "time flies", "-F", "json", "--whole-files")
    first = on_terminal(*whole, **online)
    assert first[0] == 0, first
    shown = text_shown(first[2])
    assert f"downloading model.safetensors: 0 B of {size / 1000:.0f} kB" in shown
    assert json.loads(first[1])["source"]["model"] == NAME
    again = on_terminal(*whole[:-1], **online)
    assert again[:2] == first[:2]
    assert "downloading" not in text_shown(again[2])
    offline = on_terminal(*whole, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert offline[:2] == first[:2]
    assert os.listdir(tmp_path / "hub") != []


TOKENS = """
import sys
from attncli.__main__ import main
try:
    main()
finally:
    print("huggingface_hub" in sys.modules, file=sys.stderr)
"""


def test_the_tokens_of_what_was_downloaded_are_read_without_the_hubs_client(
    online: dict[str, str], tmp_path: Path
) -> None:
    def tokens(**environment: str) -> tuple[str, str]:
        command = [sys.executable, "-c", TOKENS, "tokens", "-m", NAME, "time flies", "-F", "json"]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
        return ran.stdout, ran.stderr

    shown, asked = tokens(**online)
    assert [token["text"] for token in json.loads(shown)["tokens"]] == ["time", "flies"]
    assert asked == "True\n"
    assert tokens(**online) == (shown, "False\n")
    assert tokens(HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == (shown, "False\n")
    # Where a download may have ended before its last file, the client is asked, and finishes it.
    (missing,) = tmp_path.rglob(".no_exist/*/special_tokens_map.json")
    missing.unlink()
    assert tokens(**online) == (shown, "True\n")
    assert tokens(**online) == (shown, "False\n")


@pytest.fixture
def silent() -> Iterator[dict[str, str]]:
    """A hub that takes every connection and says nothing; the environment of a program that asks it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield {"HF_ENDPOINT": f"http://127.0.0.1:{listening.getsockname()[1]}", "HF_HUB_OFFLINE": "0"}


ASK = (
    ("inspect", "x", "-m", "somebody/else"),
    ("tokens", "x", "-m", "somebody/else"),
    ("inspect", "x", "-m", "somebody/else/folder"),
    ("inspect", "x", "--vocab", "somebody/else"),
)


@pytest.mark.parametrize("arguments", ASK, ids=" ".join)
def test_a_hub_that_says_nothing_is_left_after_the_time_that_it_has(
    silent: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    # The client alone waits for ten seconds, and then six times for a minute.
    patience = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HOME": str(tmp_path)}
    ran = program(*arguments, env=os.environ | silent | patience, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (3, "", 1)
    assert ran.stderr.startswith("attn: the hub could not be reached, ")
    assert "(it did not answer within 1 s; HF_HUB_ETAG_TIMEOUT sets how many)" in ran.stderr


def test_without_a_word_on_it_the_time_is_five_seconds(silent: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    from attncli.checkpoints import hub

    waited: list[float | None] = []

    def join(thread: threading.Thread, timeout: float | None = None) -> None:
        waited.append(timeout)

    monkeypatch.setattr(constants, "ENDPOINT", silent["HF_ENDPOINT"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_ETAG_TIMEOUT", raising=False)
    monkeypatch.setattr(threading.Thread, "join", join)
    said = hub.silence()
    assert waited == [5]
    assert said == "it did not answer within 5 s; HF_HUB_ETAG_TIMEOUT sets how many"


def test_what_did_not_answer_is_asked_again_after_a_while_and_what_answered_never(
    silent: dict[str, str], tiny_llama: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    from attncli.checkpoints import hub

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "1")
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    now = 1000.0
    monkeypatch.setattr(hub, "monotonic", lambda: now)
    with Hub({NAME: Path(tiny_llama)}) as there:
        monkeypatch.setattr(constants, "ENDPOINT", there.address)
        answers = threading.Event()
        monkeypatch.setattr(there, "trouble", lambda _: answers.wait() and None)
        assert hub.silence() is not None
        answers.set()
        monkeypatch.setattr(there, "trouble", lambda _: (500, {}))
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 60)
        now += 50
        assert hub.silence() is not None
        now += 50
        assert hub.silence() is None  # an error is an answer
        asked = len(there.asked)
    now += 500
    assert hub.silence() is None
    assert asked == len(there.asked) == 2


def test_a_checkpoint_in_the_local_cache_is_read_where_the_hub_says_nothing(
    online: dict[str, str], silent: dict[str, str]
) -> None:
    ask = ("inspect", "-m", NAME, "time flies", "--engine", "transformers", "-F", "json")
    there = program(*ask, env=os.environ | online)
    assert there.returncode == 0, there.stderr
    patience = {"HF_HUB_ETAG_TIMEOUT": "1"}
    assert program(*ask, env=os.environ | online | silent | patience, timeout=60).stdout == there.stdout


def test_a_hub_that_answers_was_reached(online: dict[str, str]) -> None:
    said = {
        "-m": "attn: the configuration of 'somebody/else' was not found on the hub or in the local cache, ",
        "--vocab": "attn: --vocab 'somebody/else' is no file or folder here and not on the hub: ",
    }
    for option, start in said.items():
        ran = program("inspect", "time flies", option, "somebody/else", env=os.environ | online)
        assert ran.returncode == 3
        assert ran.stderr.startswith(start), ran.stderr


def test_a_hub_that_refuses_so_many_requests_is_said_to_and_waited_for(tiny_llama: str, tmp_path: Path) -> None:
    def run(*more: str, wait: str | None, home: str) -> tuple[int, str, str]:
        refusals = repeat((429, {} if wait is None else {"Retry-After": wait}), 1 if wait != "86400" else 99)
        with Hub({NAME: Path(tiny_llama)}, has_storage=False) as hub:
            hub.trouble = lambda one: next(refusals, None) if one.method == "GET" and "resolve" in one.path else None
            environment = os.environ | hub.environment | {"HF_HOME": str(tmp_path / home)}
            ran = program("tokens", "-m", NAME, "time flies", "-F", "json", *more, env=environment)
            return ran.returncode, ran.stdout, ran.stderr

    said = "attn: the hub answers 429, too many requests, and is asked again in {} s; a token allows more requests (hf "
    for wait, seconds, home in (("0", 1, "told"), (None, 1, "untold")):
        code, out, err = run(wait=wait, home=home)
        assert (code, json.loads(out)["schema"], err.count("\n")) == (0, "attncli.tokens/1", 1), err
        assert err.startswith(said.format(seconds))
    assert run("--quiet", wait="0", home="quiet")[::2] == (0, "")
    code, out, err = run(wait="86400", home="day")
    assert (code, out, err.count("\n")) == (3, "", 1), err
    assert "the hub could not be reached" in err
    assert "429, too many requests, for 86,401 s" in err
