"""The meaning of log lines: a catalogue of signatures as data, and the engine that applies it."""
