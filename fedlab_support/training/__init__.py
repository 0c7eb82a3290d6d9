"""Local training: settings, what a method sees of a client, and the only loop."""
