"""The readers of a corpus: one for each kind of file, which yields its sentences with their numbers."""
