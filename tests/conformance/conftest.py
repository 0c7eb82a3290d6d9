"""The option by which a method of your own is put into the suite."""

from __future__ import annotations

from importlib import import_module

from tests.conformance.cases import CASES, Case


def pytest_addoption(parser) -> None:
    """``--method module:Class``: test this method instead of the catalogue."""
    parser.addoption("--method", default="", metavar="MODULE:CLASS")


def pytest_generate_tests(metafunc) -> None:
    """Run every test of this folder that asks for ``case`` for every method."""
    if "case" in metafunc.fixturenames:
        cases = CASES
        if given := metafunc.config.getoption("--method"):
            module, _, name = given.partition(":")
            cases = {name: Case(getattr(import_module(module), name)())}
        metafunc.parametrize("case", cases.values(), ids=cases)
