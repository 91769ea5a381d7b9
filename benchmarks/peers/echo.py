"""A line to type in, and below it what was typed: the least that an application of Textual does for a key."""

from textual.app import App, ComposeResult
from textual.widgets import Input, Static


class Echo(App[None]):
    """Shows what is typed."""

    def compose(self) -> ComposeResult:
        """Yield the line, and what shows it."""
        yield Input()
        yield Static("typed")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show it."""
        self.query_one(Static).update(f"typed {event.value}")


if __name__ == "__main__":
    Echo().run()
