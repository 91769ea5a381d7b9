"""Corpora: reading many sentences, and jobs on them in one process or many."""
