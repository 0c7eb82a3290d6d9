"""The average against the worst: rings mark the Pareto front."""

import pandas as pd

from fedlab_course import explored
from fedlab_course.figures import trade_off_picture


def test_rings_mark_the_values_that_no_other_beats_at_both():
    ends = pd.DataFrame({"axis": ["q", "q", "t", "t"], "name": ["0", "1", "0", "1"]})
    places = {"average": [50.0, 40.0, 30.0, 40.0], "worst": [20.0, 30.0, 25.0, 29.0]}
    figure = trade_off_picture(ends.assign(**places, num_seeds=2), "worst")
    (rings,) = figure.axes[0].collections
    assert rings.get_offsets().tolist() == [[50.0, 20.0], [40.0, 30.0]]


def test_the_worst_domain_is_served_no_better_than_all_images():
    exploration, folder = explored.fedgcr(), explored.place("06_fedgcr")
    ends = explored.trade_offs(exploration, folder, ["delta"])
    assert len(ends) == 4 and (ends["worst"] <= ends["average"]).all()
