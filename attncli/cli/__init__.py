"""The command line: the only package that knows Typer, the terminal and the environment."""
