"""The explorer: a text that changes as one types, and its attention, in a terminal."""

import os

# Textual draws so many times a second at the most. Two thirds of a blink more is much where a key is to be answered in
# a few hundredths of a second: the letter and its attention come apart, and the second of them would wait for its turn.
os.environ.setdefault("TEXTUAL_FPS", "240")
