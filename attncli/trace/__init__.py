"""One sentence's attention, as every source records it and every view reads it."""
