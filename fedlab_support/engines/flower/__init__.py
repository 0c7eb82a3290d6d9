"""Run a federation on Flower: every client in a process or on a machine of its own.

A *recipe* is a function that every process of the federation can import. It takes
``engine`` and settings, and returns the run: ``def recipe(engine, **settings): return
Run(…, engine=engine)``. The server steps through this run. Each node builds the same
run and uses the data of its own clients; private weights and memory stay on the node.

``fl.LocalFlower`` starts all processes on this machine and ends them. The guide,
docs/flower.md, has the commands for several machines.

Server and nodes compare the runs they built; a node that built another one is left out.
Of its samples a node sends means only (logged losses, scores of validation samples),
and with ``Privacy`` nothing but noisy weights. The recipe contains the seed, so
``Privacy(seeded=True)`` does not protect clients from a server that has the recipe.
"""

from pathlib import Path

APP = Path(__file__).parent / "app"
"""The Flower app, which is the same for every recipe: ``flwr run <this folder>``."""
