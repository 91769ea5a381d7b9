"""The explorer: a text that changes as one types, and its attention, in a terminal."""

import os

# Textual draws so many times a second at the most. At its own 60 the attention of a letter, which is drawn a few
# milliseconds after the letter itself, would wait for its turn as long as it took to compute.
os.environ.setdefault("TEXTUAL_FPS", "240")
