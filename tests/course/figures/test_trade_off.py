"""The average against the worst domain, a path per setting."""

from fedlab_course import explored
from fedlab_course.figures import trade_off_picture


def test_a_path_has_a_point_per_value():
    exploration, folder = explored.fedgcr(), explored.place("06_fedgcr")
    ends = explored.trade_offs(exploration, folder, ["delta"])
    (path,) = trade_off_picture(ends, "worst").axes[0].get_lines()
    assert path.get_xydata().tolist() == ends[["average", "worst"]].to_numpy().tolist()


def test_the_worst_domain_is_served_no_better_than_all_images():
    exploration, folder = explored.fedgcr(), explored.place("06_fedgcr")
    ends = explored.trade_offs(exploration, folder, ["delta"])
    assert len(ends) == 4 and (ends["worst"] <= ends["average"]).all()
