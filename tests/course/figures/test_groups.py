"""Figures of chapter 06: readable, and what they show is what they were given."""

import numpy as np
import pandas as pd
import pytest

from fedlab_course import figures
from tests.course.plots.test_plots import texts

COUNTS = {"svhn": 1, "mnist": 10, "usps": 3, "mnistm": 6, "synthetic digits": 2}
METHODS = ("FedAvg", "FedGCR", "AFL", "q-FFL", "TERM")


def by_type(names=METHODS, counts=COUNTS, seeds: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    kinds = pd.DataFrame({"type": counts.keys(), "num_clients": counts.values()})
    table = pd.DataFrame({"name": names}).merge(kinds, how="cross")
    table = table.assign(num_seeds=seeds)
    table["mean"] = rng.uniform(0.3, 0.95, len(table))
    return table.assign(sd=0.02 if seeds > 1 else np.nan)


def types_of(counts=COUNTS) -> list[str]:
    """The hidden type of client 0, 1, …; a type's clients do not stand together."""
    types = [t for t, n in counts.items() for _ in range(n)]
    return list(np.random.default_rng(1).permutation(types))


def over_rounds(names=("FedAvg", "AFL"), rounds: int = 12, absent: float = 0.0):
    rng, types = np.random.default_rng(2), types_of()
    rows = []
    for name in names:
        for r in range(1, rounds + 1):
            here = np.flatnonzero(rng.random(len(types)) >= absent)
            strength = here + 0.1 if name == "AFL" else 9 * np.ones(len(here))
            weight = rng.dirichlet(strength)
            rows += [
                {"name": name, "round": r, "client": k, "type": types[k], "weight": w}
                for k, w in zip(here, weight, strict=True)
            ]
    return pd.DataFrame(rows)


def representations(num_clusters: int = 5, panels=("round 1", "round 10")):
    rng, types = np.random.default_rng(3), types_of()
    names = sorted(COUNTS)
    rows = []
    for spread, panel in zip((1.5, 0.4, 0.1), panels, strict=False):
        for client, kind in enumerate(types):
            place = names.index(kind)
            x, y = spread * rng.normal(size=2) + 3 * np.array([place % 3, place // 3])
            cluster = (place + (rng.random() < 0.2)) % num_clusters + 1
            row = {"panel": panel, "client": client, "type": kind, "cluster": cluster}
            rows.append(row | {"x": x, "y": y})
    return pd.DataFrame(rows)


PICTURES = {
    "types": lambda: figures.accuracy_by_type(by_type(), title="Who is left behind"),
    "two types": lambda: figures.accuracy_by_type(
        by_type(METHODS[:2], {"photo": 1, "a style with a long name": 1}, 1)
    ),
    "weights": lambda: figures.weights_picture(
        over_rounds(), title="AFL settles on a few clients"
    ),
    "weights of a part": lambda: figures.weights_picture(over_rounds(absent=0.5)),
    "weights of three": lambda: figures.weights_picture(over_rounds(METHODS[:3], 50)),
    "weights of one round": lambda: figures.weights_picture(over_rounds(("AFL",), 1)),
    "clusters": lambda: figures.clusters_picture(
        representations(), panels="panel", title="Types come apart"
    ),
    "one panel": lambda: figures.clusters_picture(representations(8, ("round 1",))),
    "one cluster": lambda: figures.clusters_picture(representations(1, ("a",))),
}


# ---- accuracy by type ---------------------------------------------------------------
def test_types_stand_from_the_majority_to_the_minority_with_their_counts():
    table = by_type()
    figure = figures.accuracy_by_type(table)
    axis = figure.axes[0]
    labels = [label.get_text() for label in axis.get_xticklabels()]
    names = [" ".join(label.split()) for label in labels]
    assert names == [
        *("mnist 10 clients", "mnistm 6 clients", "usps 3 clients"),
        *("synthetic digits 2 clients", "svhn 1 client"),
    ]
    assert all("\n" in label for label in labels)
    assert axis.get_xlabel() == "Client type, from most clients to fewest"
    assert set(figure.data["type"]) == set(COUNTS), "the table has the plain names"
    order = sorted(COUNTS, key=COUNTS.get, reverse=True)
    for bars, name in zip(axis.containers, METHODS, strict=True):
        mine = table[table["name"] == name].set_index("type").loc[order]
        assert np.allclose(bars.lines[0].get_ydata(), 100 * mine["mean"])
    pd.testing.assert_frame_equal(figure.data, table)
    assert "num_clients" in table and (table["mean"] <= 1).all(), "left as it was"


def test_types_of_one_size_keep_the_order_of_the_table():
    counts = {"b": 2, "a": 2, "c": 5}
    figure = figures.accuracy_by_type(by_type(METHODS[:1], counts))
    labels = [label.get_text()[0] for label in figure.axes[0].get_xticklabels()]
    assert labels == ["c", "b", "a"]


def test_a_missing_column_is_named():
    with pytest.raises(ValueError, match="num_clients"):
        figures.accuracy_by_type(by_type().drop(columns="num_clients"))


# ---- weights ------------------------------------------------------------------------
def test_every_weight_stands_in_the_row_of_its_client_and_the_column_of_its_round():
    table, types = over_rounds(absent=0.3), types_of()
    figure = figures.weights_picture(table)
    size = {t: types.count(t) for t in types}
    rows = sorted(range(22), key=lambda k: (-size[types[k]], types[k], k))
    for axis, name in zip(figure.axes, ("FedAvg", "AFL"), strict=False):
        cells = np.ma.filled(axis.collections[0].get_array(), np.nan)
        assert cells.shape == (22, 12)
        part = table[table["name"] == name].set_index(["client", "round"])["weight"]
        for place, client in enumerate(rows):
            for r in range(1, 13):
                expected = 100 * part.get((client, r), np.nan)
                np.testing.assert_allclose(cells[place, r - 1], expected)
        assert axis.get_title(loc="left") == name
        assert (axis.get_xlim(), axis.get_ylim()) == ((0, 12), (22, 0))
        marks = zip(axis.get_xticks(), axis.get_xticklabels(), strict=True)
        named = {place: label.get_text() for place, label in marks}
        assert named == {r - 0.5: str(r) for r in (1, 3, 5, 7, 9, 11)}
    ticks = figure.axes[0].get_yticklabels()
    assert [t.get_text() for t in ticks] == sorted(COUNTS, key=COUNTS.get, reverse=True)
    for axis in figure.axes[:2]:
        expected = (0, 100 * table["weight"].max())
        assert axis.collections[0].get_clim() == pytest.approx(expected)
    assert "Weight (%)" in [text.get_text() for text in texts(figure)]


def test_several_runs_in_a_panel_are_refused():
    table = over_rounds()
    with pytest.raises(ValueError, match="draw one run in each panel"):
        figures.weights_picture(pd.concat([table, table]))
    with pytest.raises(ValueError, match="weight"):
        figures.weights_picture(table.drop(columns="weight"))


# ---- clusters -----------------------------------------------------------------------
def test_colour_and_letter_tell_the_type_and_shape_the_cluster():
    table = representations()
    figure = figures.clusters_picture(table, panels="panel")
    looks, outlines = {}, {}
    for axis, panel in zip(figure.axes, ("round 1", "round 10"), strict=True):
        part = table[table["panel"] == panel]
        assert len(axis.collections) == len(part) == 22
        for dot, row in zip(axis.collections, part.to_dict("records"), strict=True):
            assert np.allclose(dot.get_offsets(), [[row["x"], row["y"]]])
            colour = tuple(dot.get_facecolor()[0])
            assert looks.setdefault(row["type"], colour) == colour
            outline = dot.get_paths()[0].vertices.tobytes()
            assert outlines.setdefault(row["cluster"], outline) == outline
        letters = dict(zip(table["type"].unique(), "ABCDE", strict=True))
        inside = [text.get_text() for text in axis.texts]
        assert inside == [letters[kind] for kind in part["type"]]
    assert len(set(looks.values())) == 5 == len(set(outlines.values()))
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == [
        *(f"{letters[kind]}  {kind}" for kind in table["type"].unique()),
        *(f"cluster {number}" for number in range(1, 6)),
    ]


def test_more_than_can_be_told_apart_is_refused():
    table = representations(panels=("a",))
    many = table.assign(cluster=np.arange(22))
    with pytest.raises(ValueError, match="at most 8 clusters, found 22"):
        figures.clusters_picture(many)
    with pytest.raises(ValueError, match="at most six groups"):
        figures.clusters_picture(table.assign(type=np.arange(22)))
    with pytest.raises(ValueError, match="cluster"):
        figures.clusters_picture(table.drop(columns="cluster"))
