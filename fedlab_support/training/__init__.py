"""Local training: settings, the context of a client, and the training loop."""
