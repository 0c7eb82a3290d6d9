"""Run a federation on Flower: every client its own process or machine."""
