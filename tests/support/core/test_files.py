"""Files are complete or absent, whoever else writes them."""

from fedlab_support.core.files import replacing


def test_two_who_write_one_file_do_not_meet(tmp_path):
    path = tmp_path / "table.csv"
    with replacing(path) as one:
        one.write_text("one")
        with replacing(path) as two:
            two.write_text("two")
        assert path.read_text() == "two"
    assert path.read_text() == "one" and [*tmp_path.iterdir()] == [path]
