"""Files are complete or absent, whoever else writes them."""

import errno

import pytest

from fedlab_support.core.files import replacing


def test_two_who_write_one_file_do_not_meet(tmp_path):
    path = tmp_path / "table.csv"
    with replacing(path) as one:
        one.write_text("one")
        with replacing(path) as two:
            two.write_text("two")
        assert path.read_text() == "two"
    assert path.read_text() == "one" and [*tmp_path.iterdir()] == [path]


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("whole")

    def write() -> None:
        with replacing(path) as part:
            part.write_text("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write()
    assert path.read_text() == "whole" and [*tmp_path.iterdir()] == [path]
