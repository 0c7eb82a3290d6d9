"""A run, its evaluation, its checkpoints, and studies of many runs."""
