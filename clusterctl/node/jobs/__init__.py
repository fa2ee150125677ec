"""Programs that run on nodes for jobs: start, list and stop jobs, check before, clean up after."""
