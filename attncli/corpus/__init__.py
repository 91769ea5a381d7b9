"""Many sentences, on one process or many: where they are read, what is done with them, and where that runs."""
