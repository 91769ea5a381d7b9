"""The version, in one place: pyproject.toml, `attn --version` and the changelog test read it here."""

__version__ = "0.1.0"
