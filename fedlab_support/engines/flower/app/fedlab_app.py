"""The two apps of a federation, by the names that Flower looks for."""

from fedlab_support.engines.flower.engine import server_app
from fedlab_support.engines.flower.node import client_app

__all__ = ["client_app", "server_app"]
