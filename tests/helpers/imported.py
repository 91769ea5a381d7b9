"""What a fresh interpreter has imported once it has run something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers"}
COLD = {name: value for name, value in os.environ.items() if name not in {"PYTHONSTARTUP", "COVERAGE_PROCESS_START"}}


def modules_after(script: str, *arguments: str | Path) -> set[str]:
    script += "\nimport sys\nprint('IMPORTED', *sys.modules)"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=COLD, cwd=PROJECT)
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.splitlines()[-1].split()[1:])


def imported_by(script: str, *arguments: str | Path) -> set[str]:
    return {name.partition(".")[0] for name in modules_after(script, *arguments)}


PROGRAM = """
import sys
from typer.testing import CliRunner
from attncli.__main__ import main
from attncli.cli.app import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
assert result.stdout
"""

# The program as it is started: the runner of the tests imports more than a run does.
STARTED = """
from attncli.__main__ import main
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
