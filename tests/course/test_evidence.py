"""Fair runs: dealt by seed, kept with their answers, compared in pairs."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import nbformat
import numpy as np
import pandas as pd
import pytest

from fedlab_course import evidence
from fedlab_course.evidence import Study, deals
from fedlab_course.evidence.__main__ import main
from fedlab_course.evidence.runs import reported, tuned
from fedlab_course.evidence.study import validation_of
from fedlab_course.evidence.tables import WRITTEN, groups, runs
from fedlab_course.leaderboard.paired import holm, over_images, paired
from fedlab_course.protocols import Own, Protocol
from fedlab_course.settings import Setting
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_domain, heterogeneous
from fedlab_support.federation.protocols import leave_two_domains_out
from fedlab_support.models import small_cnn
from fedlab_support.run import archive
from fedlab_support.training.settings import LocalTraining
from tests.paths import ROOT
from tests.support.run.test_study import fits, tiny_cnn  # noqa: F401
from tests.tiny import tiny_data

DATA = tiny_data(num=240, owners=8, domains=4)
wide_cnn = partial(tiny_cnn, width=3)
TEST, VALIDATION = "domain 3", "domain 2"


def two_out(test: str, seed: int) -> Federation:
    deal = partial(heterogeneous, clients=6, lam=0.3, rng=seed)
    return leave_two_domains_out(DATA, deal)[test]


def own(test: str, seed: int) -> Federation:
    data = deals.resplit(DATA, DATA.domain, seed)
    return Federation.build(data, heterogeneous(data, 6, 0.3, seed), val=0.3)


STUDY = Study(
    "tiny",
    Protocol(
        "tiny clients",
        "",
        two_out,
        tiny_cnn,
        LocalTraining(lr=0.3, batch_size=16),
        rounds=3,
        every=2,
        weighting=None,
        own={"FedAvgM": Own({"momentum": 0.0}, wide_cnn, LocalTraining(0.6, 1, 8))},
    ),
    two_out,
    tests=(TEST,),
    rates=(0.3, 0.1),
    tuned=("FedAvg", "FedProx"),
    arms={
        "FedAvg": Setting("FedAvg"),
        "FedProx": Setting("FedProx", {"mu": 2.0}),
        "other": Setting("FedAvgM"),
    },
    against=(("FedProx", "FedAvg"), ("other", "FedAvg"), ("FedAvg", "absent")),
    logged=("task_loss",),
)
OWN = replace(STUDY, place="own", deal=own, tests=("",))
BOTH = replace(STUDY, place="both", tests=(TEST, VALIDATION))
CELL = {"method": "FedProx", "test": TEST, "lr": 0.3, "seed": 1}
keep = partial(evidence.outcome, STUDY)


# ---- studies ------------------------------------------------------------------------
def test_arms_are_trained_by_importance_and_for_all_seeds():
    cells = STUDY.default()
    assert [(cell["method"], cell["seed"]) for cell in cells] == [
        (method, seed)
        for method in ("FedAvg", "FedProx", "other")
        for seed in (0, 1, 2)
    ]
    assert {cell["lr"] for cell in cells} == {0.3}


def test_several_seeds_may_choose_and_more_may_be_reported():
    study = replace(STUDY, seeds=(0, 1, 2, 3), num_tuning=2)
    cells = study.trials(TEST, study.tuned)
    assert [(c["lr"], c["seed"]) for c in cells[:4]] == [
        *((0.3, 0), (0.3, 1), (0.1, 0), (0.1, 1))
    ]
    assert len(cells) == 8 and len(study.default()) == 12


def test_an_arm_may_have_a_network_and_a_training_of_its_own():
    usual, other = (STUDY.run(n, TEST, 0.1, 0) for n in ("FedAvg", "other"))
    assert (usual.training.lr, usual.training.batch_size) == (0.1, 16)
    assert (other.training.lr, other.training.batch_size) == (0.2, 8)
    assert usual.model_name == "tiny_cnn" and "width=3" in other.model_name


def test_an_arm_may_have_clients_of_its_own():
    study = replace(OWN, apart={"other": lambda test, seed: own(test, seed + 9)})
    kept, moved = (study.run(name, "", 0.3, 0) for name in ("FedAvg", "other"))
    assert kept.federation.fingerprint() == own("", 0).fingerprint()
    assert moved.federation.fingerprint() == own("", 9).fingerprint()


def test_pooled_writers_are_one_client_with_the_same_test_samples(monkeypatch):
    data = tiny_data(num=1600, owners=8, domains=4, size=4)
    monkeypatch.setattr(deals, "_data", lambda *_: data)
    each, whole = (deals.writers("", 3, pooled) for pooled in (False, True))
    assert (len(each), len(whole)) == (8, 1)
    assert np.array_equal(np.sort(each.test.rows), np.sort(whole.test.rows))
    deals.writers.cache_clear()


def test_methods_are_chosen_on_the_validation_domain_or_on_the_clients_samples():
    assert validation_of(STUDY.deal(TEST, 0)) == VALIDATION
    assert validation_of(OWN.deal("", 0)) == "val"


@pytest.mark.parametrize("name", evidence.STUDIES)
def test_studies_agree_with_themselves(name):
    study = evidence.STUDIES[name]
    assert study.rules.training.lr == study.rates[0]
    assert len(set(study.rates)) == len(study.rates) > 2
    named = {method for pair in study.against for method in pair}
    assert named == set(study.arms) and set(study.tuned) <= set(study.arms)
    assert len({s.place for s in evidence.STUDIES.values()}) == len(evidence.STUDIES)


def test_claims_name_comparisons_that_exist():
    pairs = {"sketch": "photo", "photo": "art_painting"}
    for claim in evidence.claims().query("group != ''").to_dict("records"):
        name, _, rest = claim["group"].partition(": ")
        test, which = rest.removesuffix(", deviation").rsplit(", ", 1)
        study = evidence.STUDIES[name]
        pair = claim["ours"], claim["ours_reference"]
        assert pair in study.against and which in ("default", "tuned")
        held_out = study.tests
        if which == "tuned" and len(study.tests) > 1:
            held_out += (f"mean of {len(study.tests)} domains",)
        if which == "default" and study.tests[0]:  # nothing was chosen on the other
            held_out = pairs[study.tests[0]], study.tests[0]
        assert ("" if test == "own domains" else test) in held_out
        assert which == "default" or set(pair) <= set(study.tuned)


ONE_OUT = evidence.STUDIES["fisc_one_out"].deal


@pytest.mark.parametrize(
    ("deal", "size"),
    [
        (deals.mixtures, 100),
        (ONE_OUT, 100),
        (partial(deals.types, imbalance=10), 6),
        (deals.offices, 4),
        (deals.skewed, 100),
        (deals.writers, 8),
        (partial(deals.writers, pooled=True), 1),
    ],
)
def test_every_seed_deals_anew(monkeypatch, deal, size):
    names = ("art_painting", "cartoon", "photo", "sketch")
    data = tiny_data(num=1600, owners=8, domains=4, size=4)
    data = replace(data, domain_names=names)
    monkeypatch.setattr(deals, "_data", lambda *_: data)
    held_out = "sketch" if deal in (deals.mixtures, ONE_OUT) else ""
    dealt = [deal(held_out, seed) for seed in (0, 1)]
    assert dealt[0].fingerprint() != dealt[1].fingerprint()
    assert all(len(one) >= size for one in dealt)
    assert all(len(one.with_val) or one.held_out_domains for one in dealt)
    getattr(deal, "func", deal).cache_clear()


def test_with_equally_many_clients_one_of_a_type_has_three_times_the_images(
    monkeypatch,
):
    names = ("art_painting", "cartoon", "photo", "sketch")
    data = replace(tiny_data(num=1600, domains=4, size=4), domain_names=names)
    monkeypatch.setattr(deals, "_data", lambda *_: data)
    sizes = np.sort(deals.types("", 0, imbalance=1).sizes)
    assert len(sizes) == 8  # two per type, which hold 1/4 and 3/4
    np.testing.assert_allclose(sizes[4:] / sizes[:4], 3, atol=0.15)
    deals.types.cache_clear()


@pytest.mark.parametrize("groups", [DATA.domain, DATA.owner], ids=["domain", "owner"])
def test_a_new_split_has_as_many_test_samples_in_each_group(groups):
    found = deals.resplit(DATA, groups, 1)
    assert (found.is_test != DATA.is_test).any()
    for group in set(groups):
        mine = groups == group
        assert found.is_test[mine].sum() == DATA.is_test[mine].sum() > 0
    assert np.array_equal(deals.resplit(DATA, groups, 1).is_test, found.is_test)


# ---- finished runs ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("study", "split"), [(STUDY, "held_out"), (OWN, "test")], ids=["held out", "own"]
)
def test_answers_are_those_of_the_last_round(tmp_path, fits, study, split):  # noqa: F811
    cell = CELL | {"test": study.tests[0]}
    found = evidence.outcome(study, cell, tmp_path)
    table = found.history.table().query("split == @split and metric == 'accuracy'")
    last = table[(table["round"] == 3) & (table["domain"] != "")]
    assert set(last["domain"]) == set(found.domain) and len(last) > 1
    for row in last.itertuples():
        assert found.share(row.domain) == pytest.approx(row.value)
    names = np.array(DATA.domain_names)[DATA.domain[found.rows]]
    assert np.array_equal(names, found.domain)
    again = evidence.outcome(study, cell, tmp_path)
    assert len(fits) == 1 and np.array_equal(again.correct, found.correct)


def test_clients_with_layers_of_their_own_answer_for_their_domains(tmp_path):
    def alone(test: str, seed: int) -> Federation:
        return Federation.build(DATA, by_domain(DATA, 1, seed), val=0.3)

    rules = replace(OWN.rules, network=partial(small_cnn, norm="batch"), rounds=1)
    study = replace(OWN, rules=rules, deal=alone, arms={"FedBN": Setting("FedBN")})
    cell = {"method": "FedBN", "test": "", "lr": 0.1, "seed": 0}
    found = evidence.outcome(study, cell, tmp_path)
    last = found.history.table().query(
        "round == 1 and split == 'test' and domain != ''"
    )
    scores = last.pivot(index="domain", columns="metric", values="value")
    shares = [found.share(name) for name in scores.index]
    assert shares == pytest.approx(scores["personal_accuracy"].tolist())
    assert shares != pytest.approx(scores["accuracy"].tolist())


def test_lost_answers_are_made_again(tmp_path):
    first = keep(CELL, tmp_path)
    (lost,) = (tmp_path / "answers").iterdir()
    lost.unlink()
    assert keep(CELL, tmp_path, trains=False) is None
    assert np.array_equal(first.correct, keep(CELL, tmp_path).correct)
    assert lost.exists()


@pytest.mark.slow
def test_packed_runs_are_found(tmp_path, fits):  # noqa: F811
    cells = [CELL, CELL | {"seed": 2}]
    for cell in cells:
        keep(cell, tmp_path)
        evidence.pack(tmp_path)
    assert not [*tmp_path.glob("runs/*.zip"), *tmp_path.glob("answers/*")]
    assert all(keep(cell, tmp_path, trains=False) is not None for cell in cells)
    assert len(fits) == 2
    (tmp_path / "answers.zip").unlink()
    keep(CELL, tmp_path)
    evidence.pack(tmp_path)  # answers that were lost, of a packed run
    assert keep(CELL, tmp_path, trains=False) is not None


# ---- tables -------------------------------------------------------------------------
@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Trained studies and their folders."""
    top = tmp_path_factory.mktemp("evidence")
    named = {"two": STUDY, "own": OWN, "both": BOTH}
    found = {name: (study, top / study.place) for name, study in named.items()}
    for study, folder in found.values():
        if study is BOTH:  # the runs of one of its test domains
            shutil.copytree(top / STUDY.place, folder)
        evidence.train(study, folder)
        evidence.pack(folder)
    return found


@pytest.mark.slow
def test_training_leaves_nothing_to_train(places, fits):  # noqa: F811
    for study, folder in places.values():
        evidence.train(study, folder)
    assert not fits


@pytest.mark.slow
def test_tuned_methods_are_reported_at_their_rates_for_all_seeds(places):
    methods, folder = STUDY.tuned, places["two"][1]
    choice = tuned(STUDY, TEST, folder, methods).choice
    cells = reported(STUDY, TEST, folder, methods)
    assert [(c["method"], c["seed"]) for c in cells] == [
        (method, seed) for method in methods for seed in (0, 1, 2)
    ]
    assert all(cell["lr"] == choice[cell["method"]]["lr"] for cell in cells)


@pytest.mark.slow
def test_a_tuned_method_is_compared_once_all_its_runs_are_there(places):
    folder = places["two"][1]
    more_methods = replace(STUDY, tuned=(*STUDY.tuned, "other"))
    cells, _ = groups("two", evidence.Kept(more_methods, folder))[f"two: {TEST}, tuned"]
    assert {cell["method"] for cell in cells} == set(STUDY.tuned)
    more_seeds = evidence.Kept(replace(STUDY, seeds=(0, 1, 2, 3)), folder)
    assert groups("two", more_seeds)[f"two: {TEST}, tuned"] == ([], TEST)


@pytest.mark.slow
def test_comparisons_are_paired_by_seed(places):
    cells, folder = STUDY.default(), places["two"][1]
    table = evidence.comparisons(evidence.Kept(STUDY, folder), {"all": (cells, TEST)})
    assert table["method"].tolist() == ["FedProx", "other"]
    answers = {}
    for cell in cells:
        found = keep(cell, folder, trains=False)
        right = found.correct[found.domain == TEST]
        answers.setdefault(cell["method"], []).append(right)
    a, b = np.stack(answers["other"]), np.stack(answers["FedAvg"])
    row, expected = table.iloc[1], paired(100 * (a.mean(1) - b.mean(1)))
    for name in ("mean", "low", "high", "sd", "num"):
        assert row[name] == pytest.approx(getattr(expected, name))
    low, high = over_images(a, b)
    assert row["images_low"] == pytest.approx(100 * low)
    assert row["images_high"] == pytest.approx(100 * high)
    assert table["p_holm"].tolist() == pytest.approx(holm(table["p"]).tolist())


def ahead_on_own_domains(folder: Path, statistic) -> list[float]:
    """FedProx minus FedAvg in points, by seed: a statistic of the domains' accuracy."""
    ahead = []
    for seed in (0, 1, 2):
        found = []
        for method in ("FedProx", "FedAvg"):
            cell = {"method": method, "test": "", "lr": 0.3, "seed": seed}
            run = evidence.outcome(OWN, cell, folder, trains=False)
            found.append(statistic([run.share(name) for name in DATA.domain_names]))
        ahead.append(100 * (found[0] - found[1]))
    return ahead


@pytest.mark.slow
def test_own_domains_count_equally_and_other_images_have_no_interval(places):
    cells, folder = OWN.default(), places["own"][1]
    row = evidence.comparisons(evidence.Kept(OWN, folder), {"all": (cells, "")}).iloc[0]
    ahead = ahead_on_own_domains(folder, np.mean)
    assert row["mean"] == pytest.approx(np.mean(ahead))
    assert np.isnan(row["images_low"])


@pytest.mark.slow
def test_the_mean_over_test_domains_is_compared_once_all_are_there(places):
    study, folder = places["both"]
    kept = evidence.Kept(study, folder)
    by_group = groups("both", kept)
    table = evidence.comparisons(kept, by_group).set_index(["group", "method"])
    ahead = [
        table.loc[(f"both: {one}, tuned", "FedProx")] for one in (TEST, VALIDATION)
    ]
    row = table.loc[("both: mean of 2 domains, tuned", "FedProx")]
    assert row["mean"] == pytest.approx(np.mean([one["mean"] for one in ahead]))
    assert row["num"] == 3 and row["images_low"] <= row["mean"] <= row["images_high"]
    assert "other" not in {cell["method"] for cell in by_group[row.name[0]][0]}
    one_test = evidence.Kept(replace(BOTH, tests=(TEST,)), folder)
    assert not any("mean" in group for group in groups("both", one_test))


@pytest.mark.slow
def test_own_domains_are_compared_for_evenness_too(places):
    cells, folder = OWN.default(), places["own"][1]
    table = evidence.comparisons(evidence.Kept(OWN, folder), {"all": (cells, "")})
    is_even = table["group"] == "all, deviation"
    assert is_even.tolist() == [False, False, True, True]
    (row,) = table[is_even].query("method == 'FedProx'").to_dict("records")
    ahead = ahead_on_own_domains(folder, np.std)
    assert row["mean"] == pytest.approx(np.mean(ahead)) and row["num"] == 3
    for measure in (is_even, ~is_even):
        mine = table[measure]
        assert mine["p_holm"].tolist() == pytest.approx(holm(mine["p"]).tolist())


class InOneDomain(evidence.Kept):
    def __call__(self, cell):
        found = super().__call__(cell)
        return found and replace(found, domain=np.full(len(found.domain), "all"))


@pytest.mark.slow
def test_in_one_domain_there_is_no_evenness(places):
    kept, cells = InOneDomain(OWN, places["own"][1]), OWN.default()
    table = evidence.comparisons(kept, {"all": (cells, "")})
    assert table["group"].tolist() == ["all", "all"]
    assert "sigma_type" not in runs(kept, cells, chosen=[])


@pytest.mark.slow
def test_tables_are_written_from_kept_runs(places, tmp_path, fits):  # noqa: F811
    for name, (study, folder) in places.items():
        evidence.tables(name, study, folder)
        rows = pd.read_csv(folder / "runs.csv", keep_default_na=False)
        keys = ["method", "test", "lr", "seed"]
        assert len(rows) == len(rows.drop_duplicates(keys)) >= 9 + 2
        chosen = [
            cell
            for test in study.tests
            for cell in reported(study, test, folder, study.tuned)
        ]
        assert rows["is_chosen"].sum() == len(chosen)
        is_chosen = rows["is_chosen"].tolist()
        assert is_chosen == [cell in chosen for cell in rows[keys].to_dict("records")]
        tried = tuned(study, study.tests[0], folder, study.tuned).trials
        at_first = rows[rows["test"] == study.tests[0]]
        both = tried.merge(at_first, on=["method", "lr", "seed"])
        assert len(both) == len(tried)
        np.testing.assert_allclose(both["validation"], both["score"], rtol=1e-3)
        table = pd.read_csv(folder / "comparisons.csv")
        named = ["domain 2, default", "domain 3, default", "domain 3, tuned"]
        if name == "both":
            named += ["domain 2, tuned", "mean of 2 domains, tuned"]
        if name == "own":
            named = [
                f"own domains, {which}{measure}"
                for which in ("default", "tuned")
                for measure in ("", ", deviation")
            ]
        assert table["group"].unique().tolist() == [
            f"{name}: {one}" for one in sorted(named)
        ]
        assert table["p_holm"].notna().any()
    table = evidence.compared([*(folder for _, folder in places.values()), tmp_path])
    assert len(table) == (2 * 2 + 1) + 2 * (2 + 1) + (2 * 2 + 3)
    found = evidence.verdicts(table)
    assert len(found) == len(evidence.claims())
    assert set(found["verdict"]) == {"not run fairly yet"}
    assert not fits


def test_without_runs_there_is_nothing_to_tabulate_or_pack(
    tmp_path, monkeypatch, capsys
):
    with pytest.raises(FileNotFoundError, match=r"found none.*evidence train own"):
        evidence.tables("own", OWN, tmp_path)
    assert not list(tmp_path.iterdir())
    words = ["evidence", "pack", "fisc", "--figures", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        main()
    assert "expected finished runs" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_show_their_mechanism(places):
    study, folder = places["two"]
    evidence.tables("two", study, folder)
    rows = pd.read_csv(folder / "runs.csv")
    assert rows[rows["method"] == "FedProx"]["task_loss_first"].notna().all()
    assert rows[rows["method"] == "FedAvg"]["task_loss_first"].isna().all()


def test_a_claim_gets_the_verdict_of_its_comparison():
    row = {"group": "fisc: sketch, tuned", "method": "FISC", "reference": "CCST"}
    row |= vars(paired([6.0, 6.2, 6.4])) | {"images_low": 4.0, "images_high": 8.0}
    found = evidence.verdicts(pd.DataFrame([row]))
    (claim,) = found[found["mean"].notna()].to_dict("records")
    assert claim["claim"] == "FISC ahead of CCST" and "sketch" in claim["data"]
    assert (claim["verdict"], claim["mean"]) == ("holds", pytest.approx(6.2))
    assert claim["printed"] == pytest.approx(66.20 - 59.91)
    assert claim["p_holm"] == pytest.approx(row["p"])
    assert "train fisc" in claim["command"] and "MobileNet" in claim["differs"]
    rest = found[found["mean"].isna()]
    assert set(rest["verdict"]) == {"not run fairly yet"}
    assert rest["printed"].notna().all()
    without_images = rest[rest["differs"].str.startswith("we have no images of")]
    assert (without_images["command"] == "").all() and len(without_images)


# ---- what is committed --------------------------------------------------------------
def test_numbers_are_written_with_four_digits_and_equal_scores_differ_by_0():
    numbers = pd.Series([-1.586e-15, -0.123456, 1e-7, 12.0, 1234.56])
    written = numbers.to_csv(header=False, **WRITTEN)
    assert written.split() == ["0", "-0.1235", "1e-07", "12", "1235"]


def test_the_verdicts_are_those_of_the_committed_comparisons():
    places = [ROOT / "figures" / s.place for s in evidence.STUDIES.values()]
    found = evidence.verdicts(evidence.compared(places))
    kept = pd.read_csv(ROOT / "figures/verdicts.csv")
    assert kept.columns.tolist() == found.columns.tolist()
    for name in ("paper", "claim", "verdict"):
        assert kept[name].tolist() == found[name].tolist()
    for name in ("printed", "mean", "low", "high", "p_holm"):
        np.testing.assert_allclose(kept[name], found[name], rtol=1e-3)


def test_the_chapter_counts_the_verdicts_that_are_committed():
    found = pd.read_csv(ROOT / "figures/verdicts.csv")["verdict"]
    is_tested = found != "not run fairly yet"
    not_this_size = (found == "not this size").sum()
    chapter = nbformat.read(ROOT / "notebooks/07_leaderboard.ipynb", as_version=4)
    (text,) = (cell.source for cell in chapter.cells if cell.id == "verdicts-read")
    kinds = set(found[is_tested].str.partition(" (")[0])
    assert kinds == {"not this size", "undecided"}
    assert f"None of the {is_tested.sum()} tested claims holds" in text
    assert f"For {not_this_size} claims the interval does not reach" in text
    assert f"lists {(~is_tested).sum()} claims that are not tested" in text


def test_chapter_04_averages_the_evaluations_of_its_runs():
    folder = ROOT / "figures" / "04_fedfa" / "fair_unseen"
    cell = ["test", "method", "seed"]
    chosen = pd.read_csv(folder / "runs.csv").query("is_chosen").set_index(cell)
    rates, found = chosen["lr"].to_dict(), []
    for made_by in archive.settings_in(folder / "runs"):
        settings = json.loads(made_by)
        history = archive.find(archive.name_for(made_by), folder / "runs")
        key = (*settings["held_out"], history.method, settings["seed"])
        if rates[key] == settings["training"]["lr"]:
            table = history.table().query("metric == 'accuracy' and domain == ''")
            table = table.query("split == 'held_out'")
            found.append(table.assign(test=key[0])[[*cell, "round", "value"]])
    rounds = pd.concat(found).set_index([*cell, "round"])["value"].sort_index()
    kept = pd.read_csv(folder / "by_round.csv").set_index([*cell, "round"])["accuracy"]
    assert rounds.index.equals(kept.index) and len(kept) == 54 * 7
    assert np.allclose(rounds, kept, atol=1e-4)
    chapter = nbformat.read(ROOT / "notebooks/04_fedfa.ipynb", as_version=4)
    (text,) = (c.source for c in chapter.cells if "by_round.csv" in c.source)
    for first in (50, 40, 30):
        late = rounds.loc[:, :, :, first:].groupby(["seed", "method"]).mean().unstack()
        lead = paired(100 * (late["FedFA+"] - late["FedAvg"]))
        said = f"{lead.mean:.1f}", f"({lead.low:.1f} to {lead.high:.1f})"
        assert all(number.replace("-", "−") in text for number in said), (first, lead)


@pytest.mark.slow
def test_committed_runs_have_their_answers():
    """The names agree for all runs, the numbers for every fourth."""
    places = [ROOT / "figures" / study.place for study in evidence.STUDIES.values()]
    packed = [place for place in places if (place / "runs.zip").exists()]
    for place in packed:
        kept, answers = (ZipFile(place / f"{n}.zip") for n in ("runs", "answers"))
        stems = [[Path(n).stem for n in file.namelist()] for file in (kept, answers)]
        assert stems[0] == stems[1]
        for stem in stems[0][::4]:
            bits = answers.read(f"{stem}.bits")
            num_right = np.unpackbits(np.frombuffer(bits, np.uint8)).sum()
            history = archive.find(f"{stem}.zip", place / "runs")
            assert history.traffic, stem
            last = {
                (split, metric): value
                for _, split, domain, client, metric, value in history.measured
                if domain == "" and client == -1
            }
            own = last.get(
                ("test", "personal_accuracy"), last.get(("test", "accuracy"))
            )
            share = last.get(("held_out", "accuracy"), own)
            nums = np.arange(8 * len(bits) - 7, 8 * len(bits) + 1)
            assert np.isclose(share * nums, num_right, rtol=1e-9).any(), stem
    assert packed
