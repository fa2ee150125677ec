"""What log lines mean: a catalogue of signatures as data, and the engine that reads with it."""
