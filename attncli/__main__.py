"""The entry point. A Ctrl-C while the program is still importing itself ends it as quietly as one later on."""

import gc
import os
import signal

# Python's own handler would raise in the middle of an import; 130 is 128 + SIGINT.
signal.signal(signal.SIGINT, lambda *_: os._exit(130))

# Importing makes many objects and no garbage; looking for some at Python's usual pace costs 7 % of every run.
gc.set_threshold(100_000, 50, 1000)


def main() -> None:
    """Run the `attn` program."""
    from attncli.cli import app

    # From here on there may be side files to remove: an interrupt unwinds the stack.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="attn")


if __name__ == "__main__":
    main()
