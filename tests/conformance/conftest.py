"""The option by which a method of your own is put into the suite."""

from __future__ import annotations

from importlib import import_module

from tests.conformance.cases import CASES, FORMS, Case


def pytest_addoption(parser) -> None:
    """``--method module:Class``: test this method instead of the catalogue."""
    parser.addoption("--method", default="", metavar="MODULE:CLASS")


def pytest_generate_tests(metafunc) -> None:
    """Run every test that asks for a ``case`` or a ``form`` for every method."""
    for asked, cases in (("case", CASES), ("form", FORMS)):
        if asked in metafunc.fixturenames:
            if given := metafunc.config.getoption("--method"):
                module, _, name = given.partition(":")
                cases = {name: Case(getattr(import_module(module), name)())}
            metafunc.parametrize(asked, cases.values(), ids=cases, scope="module")
