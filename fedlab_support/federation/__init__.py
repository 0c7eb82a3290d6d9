"""Federations of clients: partition, held-out domains and client selection."""
