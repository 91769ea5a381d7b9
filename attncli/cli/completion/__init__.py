"""What a TAB offers: the line as typed, the place it ends in, the values of that place, and the shells' scripts."""
