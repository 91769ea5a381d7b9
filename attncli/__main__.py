"""The entry point. A Ctrl-C while the program is still importing itself ends it as quietly as one later on."""

from attncli.signals import handle_signals

handle_signals()

import gc
import os
import sys

# `attn run` leaves the process to a program of the user's, which is to find it as python leaves it.
_IS_OURS = sys.argv[1:2] != ["run"]

# Importing makes many objects and no garbage; looking for some at Python's usual pace costs 7 % of every run.
if _IS_OURS:
    gc.set_threshold(100_000, 50, 1000)

# NumPy multiplies on one core, unless its user says otherwise: most products here are small, and OpenBLAS's threads
# wait for each other without sleeping. A long text has threads of its own (`attncli.engines.cpu`).
if _IS_OURS and "OMP_NUM_THREADS" not in os.environ:
    os.environ.setdefault("OPENBLAS_DEFAULT_NUM_THREADS", "1")


def main(is_process: bool = True) -> None:
    """Run the `attn` program, which ends with SystemExit, or ends the process where it is one of its own."""
    if not _IS_OURS and not sys.flags.safe_path:
        # The folder of the program, or that of this script, from which nothing of ours is to be imported.
        sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    from attncli.cli.app import app
    from attncli.cli.environment import end_process, settle_streams

    settle_streams()
    try:
        app(prog_name="attn")
    except SystemExit as ended:
        if _IS_OURS and is_process:  # a program of the user's ends as under python
            end_process(ended.code)
        raise


if __name__ == "__main__":
    main()
