"""Standing values: which place goes before which, what a run leaves out of them, what is refused."""

import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from readme import pages
from refusals import refused
from typer.main import get_command

from attncli._version import __version__
from attncli.checkpoints.options import EngineOptions, ToyOptions
from attncli.cli.app import app
from attncli.cli.groups import dashed
from attncli.cli.settings import defaults

Run = Callable[..., Any]

SENTENCE = "time flies like an arrow"
DEFAULTS = defaults()
# Of an option of each kind four values, none of them the default, as a command line has them.
VALUES = {
    "model": ["first", "second", "third", "fourth"],
    "dtype": ["float16", "bfloat16", "float64", "auto"],
    "jobs": ["1", "2", "3", "4"],
    "seed": ["1", "2", "3", "4"],
    "colormap": ["cividis", "gray", "cividis", "gray"],
}
NUMBERS = {"d_model", "num_heads", "seed", "precision", "width"}


def toml(values: Mapping[str, str]) -> str:
    return "".join(
        f"{dashed(name)} = {value if name in NUMBERS or value in ('true', 'false') else repr(value)}\n"
        for name, value in values.items()
    )


class Places:
    """The places where values can stand, all of them empty at first."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, patch
        (folder / "home" / "attncli").mkdir(parents=True)
        (folder / "work").mkdir()
        self.user = folder / "home" / "attncli" / "attncli.toml"
        self.project = folder / "work" / "pyproject.toml"
        patch.setenv("XDG_CONFIG_HOME", str(folder / "home"))
        patch.chdir(folder / "work")

    def environment(self, **values: str) -> None:
        for name in [name for name in os.environ if name.startswith("ATTN_")]:
            self._patch.delenv(name)
        for name, value in values.items():
            self._patch.setenv(f"ATTN_{name.upper()}", value)

    def in_project(self, **values: str) -> None:
        self.project.write_text(f"[tool.attncli]\n{toml(values)}")

    def in_home(self, **values: str) -> None:
        self.user.write_text(toml(values))


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    return Places(tmp_path, monkeypatch)


def values_of(*arguments: str) -> dict[str, Any]:
    """What `attn inspect` takes from its command line and from where values stand."""
    root: Any = get_command(app)
    context = root.get_command(None, "inspect").make_context("inspect", [*arguments])
    return {name: value for name, value in context.params.items() if value not in (None, False, [])}


@pytest.mark.parametrize("name", VALUES)
def test_a_flag_goes_before_the_environment_the_project_the_user_and_the_default(name: str, places: Places) -> None:
    more = {"dtype": {"model": "a/model"}}.get(name, {})
    form = ["-F", "jsonl"]
    flags = [
        [*form, *(f"--{dashed(one)}={text}" for one, text in {**more, name: value}.items())] for value in VALUES[name]
    ]
    # What is made of flags, where nothing stands anywhere, is what the other places have to come to.
    expected = [values_of(*flag) for flag in flags]
    in_environment, in_project, in_home = ({**more, name: value} for value in VALUES[name][1:])
    places.in_home(**in_home)
    assert values_of(*form) == expected[3]
    places.in_project(**in_project)
    assert values_of(*form) == expected[2]
    places.environment(**in_environment)
    assert values_of(*form) == expected[1]
    assert values_of(*flags[0]) == expected[0]


def test_offline_can_be_switched_off_by_the_environment_and_not_by_a_project(places: Places) -> None:
    assert values_of("--offline") == {"offline": True}
    places.in_home(offline="true")
    places.in_project(offline="false")
    assert values_of() == {"offline": True}, "a cloned repository sends nobody to the network"
    places.environment(offline="0")
    assert not values_of().get("offline")
    places.environment(offline="yes")
    assert values_of() == {"offline": True}


def test_the_variables_of_the_help_are_those_that_are_read() -> None:
    root: Any = get_command(app)
    shown = set()
    for path in (["inspect"], ["heads"], ["check"], ["why"], ["diff"], ["mask", "show"], ["mask", "model"]):
        command = root
        for name in path:
            command = command.get_command(None, name)
        for parameter in command.params:
            if parameter.envvar:
                assert parameter.envvar == f"ATTN_{parameter.name.upper()}"
                assert parameter.name in DEFAULTS
                shown.add(parameter.name)
    assert shown == set(DEFAULTS)


def test_the_defaults_are_those_of_the_sources_and_of_the_help() -> None:
    toy, loading = ToyOptions(), EngineOptions()
    sources = {"d_model": toy.d_model, "num_heads": toy.heads, "init": toy.weights, "positions": toy.positions,
               "seed": toy.seed, "rng": toy.rng, "device": loading.device, "offline": loading.offline,
               "dtype": loading.dtype, "device_map": loading.device_map, "engine": loading.engine}  # fmt: skip
    assert sources.items() <= DEFAULTS.items()
    inspect: Any = get_command(app).get_command(None, "inspect")  # type: ignore[attr-defined]
    for name in ("colormap", "color"):
        (help_,) = (parameter.help for parameter in inspect.params if parameter.name == name)
        assert f"Default: {DEFAULTS[name]}" in help_


def test_the_docs_list_them() -> None:
    text = pages()["docs/reference/configuration.md"]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")][1:]
    assert {one for row in rows for one in re.findall(r"`(\w+)`", row[2])} == {
        f"ATTN_{name.upper()}" for name in DEFAULTS
    }
    assert {one for row in rows for one in re.findall(r"`([\w-]+)`", row[3])} == {dashed(name) for name in DEFAULTS}


# --- what does not apply ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("standing", "arguments", "in_force"),
    [
        # --from has its attention already.
        ({"model": "m", "dtype": "float16", "seed": "3", "offline": "true"}, ["--from", "t.safetensors"], {}),
        ({"colormap": "gray", "precision": "2"}, ["--from", "t.safetensors"], {"colormap": "gray", "precision": 2}),
        ({"precision": "2"}, ["--from", "t.safetensors", "-F", "json"], {}),
        # Options of the toy layer ask for it.
        ({"model": "m", "device": "cuda"}, ["--seed", "3"], {}),
        ({"model": "m", "num_heads": "2"}, ["--d-k", "3"], {"num_heads": 2}),
        ({"dtype": "float16", "device_map": "auto", "num_heads": "2"}, [], {"num_heads": 2}),
        # A checkpoint has no toy layer's options.
        ({"seed": "3", "d_model": "8", "dtype": "float16"}, ["-m", "m"], {"dtype": "float16"}),
        # A model runs in one place.
        ({"device_map": "auto"}, ["-m", "m", "--device", "cpu"], {}),
        ({"device": "cuda"}, ["-m", "m", "--device-map", "auto"], {}),
        ({"init": "zeros"}, ["--project", "none"], {}),
        # The engine is a checkpoint's.
        ({"engine": "native"}, [], {}),
        # What programs read has all digits.
        ({"precision": "2"}, ["-o", "out.JSONL"], {}),
        ({"precision": "2"}, ["-o", "/dev/null"], {"precision": 2}),
        ({"precision": "2"}, ["-F", "json", "--precision", "1"], {}),
    ],
)
def test_what_does_not_apply_is_left_out(
    standing: dict[str, str], arguments: list[str], in_force: dict[str, Any], places: Places
) -> None:
    alone = values_of(*arguments)
    places.in_project(**standing)
    assert values_of(*arguments) == alone | in_force
    places.project.unlink()
    places.environment(**standing)
    assert values_of(*arguments) == alone | in_force


def test_a_flag_that_does_not_apply_is_refused_whatever_stands(places: Places, attn: Run) -> None:
    places.environment(model="m", dtype="float16")
    ran = attn("inspect", SENTENCE, "--seed", "3", "--dtype", "float16")
    refused(ran, 2, "--dtype does not apply to the toy layer")


# --- real runs of every command ---------------------------------------------------------------------------


def test_commands_take_them(places: Places, attn: Run, tiny_llama: str) -> None:
    blank = places.folder / "with a blank"
    blank.symlink_to(tiny_llama, target_is_directory=True)
    runs = [["heads", SENTENCE], ["diff", SENTENCE, "fruit flies like a banana", "-F", "json"]]
    toy = [attn(*run).out for run in runs]
    with_model = [attn(*run, "-m", blank).out for run in runs]
    seeded = [attn(*run, "--seed", "3").out for run in runs]
    assert all(len({*three}) == 3 for three in zip(toy, with_model, seeded, strict=True))
    places.in_project(seed="3")
    assert [attn(*run).out for run in runs] == seeded
    # An engine is nothing to commands that have none.
    places.environment(model=str(blank), engine="native")
    assert [attn(*run).out for run in runs] == with_model
    assert attn("check", SENTENCE).out.startswith(f"{blank} · llama ·")
    for run in (["tokens", SENTENCE], ["inspect", SENTENCE, "--seed", "3"]):
        assert (attn(*run).code, attn(*run).err) == (0, "")


# --- what cannot be ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colourmap = 'gray'", "pyproject.toml: unknown option 'colourmap'; did you mean 'colormap'?"),
        ("layer = 3", "pyproject.toml: unknown option 'layer'; expected some of model, "),
        ("[tool.attncli.why]\nseed = 3", "pyproject.toml: unknown option 'why'"),
        ("seed = '3'", "'seed' in pyproject.toml: expected a whole number"),
        ("seed = true", "'seed' in pyproject.toml: expected a whole number"),
        ("width = nan", "'width' in pyproject.toml: expected a whole number"),
        ("model = 1979-05-27", "'model' in pyproject.toml: expected a text in quotes"),
        (f"seed = 0x{'f' * 5000}", "'seed' in pyproject.toml: expected a whole number"),
        ("offline = 1", "'offline' in pyproject.toml: expected true or false"),
        ("colormap = 'virids'", "invalid value for 'colormap' in pyproject.toml: 'virids' is not one of 'viridis'"),
        ("width = 3", "invalid value for 'width' in pyproject.toml: "),
        ("seed = -3", "--seed -3: expected 0 to 2^63 - 1 (--seed -3 comes from 'seed' in pyproject.toml)"),
        ("seed = ", "pyproject.toml is not valid TOML: "),
        (f"# {'#' * 2**20}", "pyproject.toml is larger than 1 MiB; expected a configuration file"),
    ],
)
def test_what_a_file_cannot_say_is_one_sentence_and_exit_2(text: str, message: str, places: Places, attn: Run) -> None:
    places.project.write_text(f"[tool.attncli]\n{text}\n")
    refused(attn("inspect", SENTENCE), 2, message)


def test_no_file_and_no_variable_switches_on_code_of_others(places: Places, attn: Run) -> None:
    for file, line in (
        (places.project, "[tool.attncli]\ntrust-remote-code = true\n"),
        (places.user, "trust_remote_code = true"),
    ):
        file.write_text(line)
        ran = attn("inspect", SENTENCE, "-m", "m")
        assert ran.code == 2
        assert re.search("'trust[-_]remote[-_]code' is a flag only", ran.err)
        file.unlink()
    places.environment(trust_remote_code="1")
    assert values_of("-m", "m") == {"model": "m"}
    (ignored,) = attn("config", "-F", "json").json["ignored"]
    assert ignored["from"] == "ATTN_TRUST_REMOTE_CODE"
    assert "a flag only" in ignored["why"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("SEED", "three", "invalid value for ATTN_SEED: "),
        ("WIDTH", "3", "invalid value for ATTN_WIDTH: "),
        ("OFFLINE", "perhaps", "invalid value for ATTN_OFFLINE: expected true or false; see"),
        ("D_MODEL", "30", "(--d-model 30 comes from ATTN_D_MODEL)"),
        ("MODEL", "no/such\x1b[31m", "(--model no/such"),
    ],
)
def test_what_is_wrong_with_a_variable_names_it(name: str, value: str, message: str, places: Places, attn: Run) -> None:
    places.environment(**{name: value})
    refused(attn("inspect", SENTENCE), 3 if name == "MODEL" else 2, message, f"ATTN_{name}")


def test_files_are_looked_for_in_two_places_alone(places: Places, attn: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    places.in_project(seed="3")
    inside = places.folder / "work" / "inside"
    inside.mkdir()
    monkeypatch.chdir(inside)
    assert values_of() == {}, "of a parent folder nothing is read"
    monkeypatch.chdir(places.folder)
    monkeypatch.setenv("XDG_CONFIG_HOME", "home")  # relative: the specification ignores it
    places.in_home(seed="4")
    monkeypatch.setenv("HOME", str(places.folder))
    assert values_of() == {}
    (places.folder / ".config").symlink_to(places.folder / "home")
    assert values_of() == {"seed": 4}
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert values_of() == {"seed": 4}


def test_what_is_no_configuration_of_ours_is_left_alone(places: Places) -> None:
    for text in ("[tool.other", "", "tool = 3 # attncli", "[tool]\nother = 'attncli'"):
        places.project.write_text(text)
        assert values_of() == {}
    places.project.write_bytes(b"\xef\xbb\xbf[tool.attncli]\r\nseed = 3\r\n")  # as Windows' editor writes it
    assert values_of() == {"seed": 3}


def test_a_file_that_cannot_be_read_is_said(places: Places, attn: Run) -> None:
    for target in ("/proc/self/mem", "/dev/zero"):  # an error at its start; endless
        places.project.symlink_to(target)
        ran = attn("inspect", SENTENCE)
        assert ran.code == 2
        assert re.fullmatch(r"attn: .*pyproject\.toml.*\n", ran.err), ran.err
        places.project.unlink()
    places.project.write_bytes("[tool.attncli]\nseed = 3\n".encode("utf-16"))  # which is not taken for saying nothing
    refused(attn("inspect", SENTENCE), 2, "pyproject.toml is not valid TOML: ")
    places.project.unlink()
    places.user.write_bytes(b"seed = '\xff'")
    assert f"{places.user} is not valid TOML" in attn("inspect", SENTENCE).err
    places.user.unlink()
    places.project.mkdir()
    for name, what in (("pyproject.toml", "a folder"), (str(places.user), "a pipe or a device")):
        ran = attn("inspect", SENTENCE)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == f"attn: {name} is {what}; expected a configuration file\n"
        if name == "pyproject.toml":
            places.project.rmdir()
            os.mkfifo(places.user)


# --- attn config ------------------------------------------------------------------------------------------


def test_config_says_what_is_in_force_and_where_it_comes_from(places: Places, attn: Run) -> None:
    bare = attn("config", "-F", "json").json
    assert (bare["schema"], bare["ignored"]) == ("attncli.config/1", [])
    assert {one["option"].replace("-", "_"): one["value"] for one in bare["options"]} == DEFAULTS
    assert bare["files"] == ["pyproject.toml", str(places.user)]
    python = sys.version.split()[0]
    assert bare["cluster"].items() >= {"attncli": __version__, "python": python, "address": None}.items()
    places.in_home(colormap="gray", width="90", offline="true", dtype="float16")
    places.in_project(model="a/model", colormap="cividis", offline="false")
    places.environment(model="", seed="7", modle="x")
    message = attn("config", "-F", "json").json
    assert all(one["variable"] == "ATTN_" + one["option"].upper().replace("-", "_") for one in message["options"])
    changed = {one["option"]: (one["value"], one["from"]) for one in message["options"] if one["from"] != "default"}
    assert changed == {
        "model": (None, "ATTN_MODEL"),
        "seed": (7, "ATTN_SEED"),
        "colormap": ("cividis", "pyproject.toml"),
        "width": (90, str(places.user)),
        "offline": (True, str(places.user)),
    }
    ignored = {(one["option"], one["value"], one["from"]): one["why"] for one in message["ignored"]}
    assert ignored == {
        ("model", "a/model", "pyproject.toml"): "overridden by ATTN_MODEL",
        ("colormap", "gray", str(places.user)): "overridden by pyproject.toml",
        ("offline", False, "pyproject.toml"): "a project cannot switch it off",
        ("dtype", "float16", str(places.user)): "does not apply to the toy layer",
        (None, "x", "ATTN_MODLE"): "there is no such variable; did you mean 'ATTN_MODEL'?",
    }


def test_config_as_a_table_says_the_same_and_loses_nothing(places: Places, attn: Run) -> None:
    places.environment(model="\x1b[31mred", seed="3")
    table = attn("config").out
    rows = dict(re.findall(r"^(\S+)  +(.*?)$", table, re.MULTILINE))
    assert set(map(dashed, DEFAULTS)) <= rows.keys()
    assert "\x1b" not in table
    assert re.search(r"^model +\S*\[31mred +ATTN_MODEL$", table, re.MULTILINE)
    assert re.search(r"^seed +3 +ATTN_SEED +does not apply to --model$", table, re.MULTILINE)
    assert re.search(r"^d-model +32 +default$", table, re.MULTILINE)


def test_an_empty_variable_is_the_default_whatever_a_file_says(places: Places) -> None:
    places.in_project(model="a/model", width="50")
    places.environment(model="")
    assert values_of() == {"width": 50}
    places.environment(model="", width="")
    assert values_of() == {}


def test_the_nearer_of_two_places_says_where_a_model_runs(places: Places) -> None:
    places.in_home(model="m", device_map="auto")
    places.in_project(device="cuda")
    assert values_of() == {"model": "m", "device": "cuda"}
