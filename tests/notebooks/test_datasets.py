"""Every built-in data set works in a chapter, or its first cells refuse it by name."""

import re

import nbformat
import pytest

from fedlab_course.protocols import COMPARED
from fedlab_course.runner import NOTEBOOKS
from fedlab_support.data.builtin import BUILT_IN

WORKING = {
    "00_tour": ("characters",),
    "01_fedavg": ("characters",),
    "02_client_selection": ("characters",),
    "03_fedsr_feddg": ("characters",),
    "04b_fedfa_segmentation": ("prostate_phantoms",),
    "08_scaling_out": ("digits", "characters"),
}
"""Chapter → the built-in sets with which it runs."""


@pytest.mark.parametrize("dataset", sorted(BUILT_IN))
@pytest.mark.parametrize("name", sorted(WORKING))
def test_a_built_in_set_works_or_is_refused_in_one_sentence(name, dataset):
    file = NOTEBOOKS / f"{name}.ipynb"
    cells = [c for c in nbformat.read(file, 4).cells if c.cell_type == "code"]
    given, setup = cells[0].source, cells[1].source
    chosen, count = re.subn(r'(?m)^(dataset: str = )".*?"', rf'\1"{dataset}"', given)
    assert count == 1
    if dataset in WORKING[name]:
        exec(f"{chosen}\n{setup}", {})
        return
    with pytest.raises(ValueError, match=f"{name}: dataset must be among") as refusal:
        exec(f"{chosen}\n{setup}", {})
    assert all(repr(works) in str(refusal.value) for works in WORKING[name])


@pytest.mark.parametrize("dataset", sorted(BUILT_IN))
def test_the_leaderboard_has_a_protocol_for_a_built_in_set_or_refuses_it(dataset):
    cells = nbformat.read(NOTEBOOKS / "07_leaderboard.ipynb", as_version=4).cells
    given, setup = [c.source for c in cells if c.cell_type == "code"][:2]
    chosen, count = re.subn(
        r"(?m)^datasets: .*$", f"datasets: list = ['{dataset}']", given
    )
    assert count == 1
    if dataset in COMPARED:
        exec(f"{chosen}\n{setup}", {})
        return
    with pytest.raises(ValueError, match="07_leaderboard: datasets must be among"):
        exec(f"{chosen}\n{setup}", {})


@pytest.mark.parametrize(
    ("usual", "other", "refused"),
    [
        ('"camera_sites"', '"digits"', "camera_protocol must be among .*camera_sites"),
        (
            '["FedAvg", "FISC", "CCST"]',
            '["FedNope"]',
            r"methods must be among .*'FISC'.*found \['FedNope'\]",
        ),
    ],
)
def test_chapter_05_refuses_what_it_does_not_know_before_anything_is_trained(
    usual, other, refused
):
    cells = nbformat.read(NOTEBOOKS / "05_fisc.ipynb", as_version=4).cells
    given, imports, setup = [c.source for c in cells if c.cell_type == "code"][:3]
    assert given.count(usual) == 1
    given = given.replace(usual, other)
    with pytest.raises(ValueError, match=f"05_fisc: {refused}"):
        exec(f"{given}\n{imports}\n{setup}", {})
