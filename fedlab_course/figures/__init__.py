"""Figures that only chapters of this course need."""
