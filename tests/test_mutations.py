"""The table of mutations belongs to today's code."""

import pytest

from fedlab_support.methods import catalogue
from tests.mutations import MUTATIONS, Mutation, Source, files_of


@pytest.fixture(scope="module")
def source():
    return Source()


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=str)
def test_a_mutation_can_be_tried(source, mutation):
    file, text = source.mutated(mutation)
    compile(text, str(file), "exec")
    assert files_of(mutation)


def test_every_method_is_broken_in_a_formula_and_in_a_default():
    edited = {m.target.split(".")[0] for m in MUTATIONS if m.old is not None}
    preset = {m.target.split(".")[0] for m in MUTATIONS if m.old is None}
    assert len(MUTATIONS) >= 90
    names = {kind.__name__ for kind in catalogue().values()}
    assert names - edited == {"VPT"}  # which is Prompted, no more
    assert names - preset == {"VPT", "FedGR"}  # fields of mix-ins
    assert {"Prompted", "GroupReweighting"} <= edited & preset


@pytest.mark.parametrize(
    ("target", "old", "message"),
    [
        ("FedProx.loss", "self.nu", "must occur once in FedProx.loss, found 0"),
        ("FedProx", "self", "must occur once in FedProx, found"),
        ("FedNothing", "self", "defined once, found 0 places"),
        ("FedProx.loss", "trained parameters that were", "found 0"),  # a docstring
    ],
)
def test_an_unclear_mutation_is_refused(source, target, old, message):
    with pytest.raises(ValueError, match=message):
        source.mutated(Mutation(target, old, "0", "methods"))


def test_a_default_is_changed_inside_whatever_wraps_it(tmp_path):
    folder = tmp_path / "fedlab_support"
    folder.mkdir()
    code = "class A:\n    x: float = setting(-0.5, at_least=0)  # π\n    y = (1, 2)\n"
    (folder / "a.py").write_text(code, encoding="utf-8")
    other = Source(tmp_path)
    _, text = other.mutated(Mutation("A.x", None, "0.7", "methods"))
    assert text == code.replace("-0.5", "0.7")
    _, text = other.mutated(Mutation("A.y", None, "(3,)", "methods"))
    assert text == code.replace("(1, 2)", "(3,)")
