"""What every room stands on: messages, metrics, history, random streams, checks."""
