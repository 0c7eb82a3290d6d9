"""Shared foundations: messages, metrics, history, random streams, and checks."""
