"""Motion as files: a GIF, a film, or a strip for print."""

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedlab_course import plots

SIZE = (1.2, 0.7)  # inches
RAW = """#!/bin/sh
for last; do :; done
cat > "$last"
"""
"""Stands in for ffmpeg: keeps the frames as they come."""


def frames(count: int = 3) -> list:
    """Figures that differ by how far a bar reaches."""
    made = [Figure(SIZE) for _ in range(count)]
    for k, figure in enumerate(made):
        axis = figure.add_axes((0, 0, 1, 1))
        axis.set(xlim=(0, count), ylim=(0, 1))
        axis.axis("off")
        axis.barh([0.5], [k + 1], height=1, color="black")
    return made


def share_of_ink(image: Image.Image) -> float:
    return float((np.asarray(image.convert("L")) < 128).mean())


def test_a_gif_shows_every_figure_in_order_and_rests_on_the_last(tmp_path):
    file = plots.save_motion(frames(), tmp_path / "new" / "bar.gif", 200)
    with Image.open(file) as film:
        assert film.n_frames == 3 and film.size == (264, 154)
        seen, times = [], []
        for k in range(3):
            film.seek(k)
            seen.append(share_of_ink(film))
            times.append(film.info["duration"])
    assert seen == pytest.approx([1 / 3, 2 / 3, 1], abs=0.03)
    assert times == [200, 200, 800]
    again = plots.save_motion(frames(), tmp_path / "again.gif", 200)
    assert again.read_bytes() == file.read_bytes()


def test_a_strip_has_the_chosen_frames_side_by_side_at_their_size(tmp_path):
    file = plots.save_motion(frames(), tmp_path / "bar.png", chosen=[0, 2])
    with Image.open(file) as strip:
        assert strip.size == (720, 210)
        halves = [strip.crop((0, 0, 360, 210)), strip.crop((360, 0, 720, 210))]
        assert [share_of_ink(h) for h in halves] == pytest.approx([1 / 3, 1], abs=0.03)
    file = plots.save_motion(frames(), tmp_path / "bar.pdf")
    assert file.read_bytes().startswith(b"%PDF") and b"/Image" in file.read_bytes()


def test_a_film_gets_every_figure_from_ffmpeg_or_says_what_is_missing(tmp_path):
    program = tmp_path / "ffmpeg"
    with matplotlib.rc_context({"animation.ffmpeg_path": str(program)}):
        with pytest.raises(RuntimeError, match=r"needs the program ffmpeg.*or write"):
            plots.save_motion(frames(), tmp_path / "bar.mp4")
        assert not (tmp_path / "bar.mp4").exists()
        program.write_text(RAW)
        program.chmod(0o755)
        file = plots.save_motion(frames(), tmp_path / "bar.mp4")
    film = np.frombuffer(file.read_bytes(), np.uint8).reshape(3, 154, 264, 4)
    ink = (film[..., 0] < 128).mean((1, 2))
    assert ink == pytest.approx([1 / 3, 2 / 3, 1], abs=0.03)


def test_what_cannot_be_a_motion_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in one of .*found 'bar.svg'"):
        plots.save_motion(frames(), tmp_path / "bar.svg")
    with pytest.raises(ValueError, match=r"of one size, found \[\]"):
        plots.save_motion([], tmp_path / "bar.gif")
    uneven = [*frames(1), Figure((1, 1))]
    with pytest.raises(ValueError, match="of one size, found"):
        plots.save_motion(uneven, tmp_path / "bar.gif")
    assert not list(tmp_path.iterdir())
