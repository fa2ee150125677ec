"""Programs that run on nodes for script-mode jobs: the variables and arguments of the user's
program, its Pipe Mode streams, parameter servers, and the collection of its results
(docs/script-mode.md)."""
