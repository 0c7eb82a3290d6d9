"""The sets that are always there: the same every time, at any size, and listed."""

import pytest

from fedlab_course.making import characters, digits
from fedlab_support.data import available, load


def test_digits_are_the_same_at_every_generation():
    again = digits.digits()
    assert again.fingerprint() == load("digits").fingerprint()


@pytest.mark.slow
def test_characters_are_the_same_at_every_generation():
    again = characters.characters()
    assert again.fingerprint() == load("characters").fingerprint()


def test_size_resizes_on_load():
    assert load("digits", size=16).image_shape == (1, 16, 16)
    assert load("digits").image_shape == (1, 28, 28)
    with pytest.raises(ValueError, match=r"size must be .* ≥ 1"):
        load("digits", size=0)


def test_who_changes_a_set_does_not_change_the_next_one():
    load("digits").labels[:] = 0
    assert load("digits").labels.max() == 9


def test_available_lists_built_in_sets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    table = available()
    assert table.loc["characters", "here"] == "built in"
    assert table.loc["femnist", "here"] == "no"


@pytest.mark.parametrize(
    ("name", "stands_in_for"),
    [
        ("camera_sites", "iWildCam"),
        ("digit_domains", "Digit-Five"),
        ("picture_styles", "PACS"),
    ],
)
def test_a_stand_in_is_listed_as_one(name, stands_in_for):
    row = available().loc[name]
    assert row["here"] == "built in"
    assert f"stands in for {stands_in_for}" in row["about"]
