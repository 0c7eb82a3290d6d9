"""Layers that methods insert into a network."""
