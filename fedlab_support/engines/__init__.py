"""How a cohort is visited."""

from .local import LocalEngine

__all__ = ["LocalEngine"]
