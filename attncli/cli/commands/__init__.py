"""The commands: parse, call the library, emit."""
