"""The leaderboard: gaps with reasons, runs of chapters, ranks."""

import importlib.util
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import pytest

from fedlab_course import leaderboard, protocols, settings
from fedlab_course.chapter import Chapter
from fedlab_course.comparison import Comparison
from fedlab_course.leaderboard import Keeping
from fedlab_course.protocols import Own, Protocol
from fedlab_support import methods
from fedlab_support.federation.federation import Federation
from fedlab_support.federation.partition import by_domain, leave_out
from fedlab_support.run.run import Run
from fedlab_support.training.settings import LocalTraining
from tests.paths import shared
from tests.support.run.test_study import fits, tiny_cnn  # noqa: F401
from tests.tiny import tiny_data


def deal(dataset: str, held_out: str, val: float) -> Federation:
    whole = tiny_data(num=60, owners=3)
    among = leave_out(whole, held_out) if held_out else None
    parts = by_domain(whole, 2, 0, among)
    return Federation.build(whole, parts, held_out or (), val)


@pytest.fixture
def board(monkeypatch) -> str:
    """A protocol of seconds, under the name "tiny"."""
    plan = Protocol(
        *("for tests", "digits", deal, tiny_cnn),
        *(LocalTraining(0.1, batch_size=16), 4, 2, None, (0, 1)),
        own={"FedProx": Own({"mu": 0.5})},
    )
    monkeypatch.setitem(protocols.PROTOCOLS, "tiny", lambda: plan)
    leaderboard.protocol.cache_clear()
    leaderboard.gap.cache_clear()
    yield "tiny"
    leaderboard.protocol.cache_clear()
    leaderboard.gap.cache_clear()


# ---- what is compared ---------------------------------------------------------------
def test_every_method_of_the_catalogue_stands_on_the_board_the_baseline_first():
    names = leaderboard.entries()
    assert names[0] == "FedAvg"
    assert sorted(names) == sorted(methods.catalogue())
    some = leaderboard.entries(["FPL", "FedBN"], ["mixup"])
    assert some == ["FedAvg", "FedBN", "FPL", "FedAvg + mixup"]


@pytest.mark.parametrize("wrong", [(["FedAwg"],), ((), ["mixdown"])])
def test_an_unknown_name_is_refused_with_the_known_ones(wrong):
    with pytest.raises(ValueError, match="expected some of"):
        leaderboard.entries(*wrong)
    with pytest.raises(ValueError, match="expected a protocol out of"):
        leaderboard.protocol("mnist6")


@pytest.mark.parametrize("entry", ["FedAwg", "FedAvg + mixdown"])
def test_no_run_is_made_of_an_unknown_entry(entry):
    with pytest.raises(ValueError, match="expected some of"):
        leaderboard.collect(["digit_domains"], [entry])


def test_a_protocol_decides_weighting_settings_and_samples_kept_back(board):
    run = leaderboard.run_of("FedProx", board)
    assert (run.method.weighting, run.method.mu) == ("equal", 0.5)
    assert not run.federation.num_val.any()
    kept = leaderboard.run_of("FedDG-GA", board).federation.num_val
    assert (kept > 0).all()
    augmented = leaderboard.run_of("FedAvg + MixStyle", board)
    assert type(augmented.training.augment).__name__ == "MixStyle"
    assert augmented.method == leaderboard.run_of("FedAvg", board).method


def test_a_gap_says_why(board):
    found = leaderboard.gaps(["FedAvg", "FedGCR", "VPT"], [board])
    assert found["method"].tolist() == ["FedGCR", "VPT"]
    assert found["reason"].str.contains("frozen vision transformer").all()
    assert leaderboard.gaps(["FedAvg"], [board]).columns.tolist() == [
        *("protocol", "method", "reason")
    ]


def test_absent_weights_are_a_gap_and_absent_data_an_error(board, monkeypatch):
    def absent(*_):
        raise FileNotFoundError("expected weights in FEDLAB_WEIGHTS")

    with monkeypatch.context() as there:
        there.setattr(methods.FedProx, "adapt", absent)
        assert "expected weights" in leaderboard.gap("FedProx", board)
        assert leaderboard.gap("FedAvg", board) == ""
    plan = replace(leaderboard.protocol(board), deal=absent)
    monkeypatch.setitem(protocols.PROTOCOLS, board, lambda: plan)
    leaderboard.protocol.cache_clear()
    with pytest.raises(FileNotFoundError):
        leaderboard.gap("TERM", board)


def test_what_is_no_refusal_is_not_hidden_as_a_gap(board, monkeypatch):
    def broken(self, model):
        raise TypeError("a bug")

    monkeypatch.setattr(methods.FedProx, "adapt", broken)
    with pytest.raises(TypeError, match="a bug"):
        leaderboard.gap("FedProx", board)


def test_protocols_of_built_in_data_are_always_at_hand(monkeypatch, tmp_path):
    monkeypatch.delenv("FEDLAB_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    names = leaderboard.at_hand()
    assert {"digit_domains", "characters", "prostate_phantoms"} <= set(names)
    assert "digits5" not in names


# ---- runs and measures --------------------------------------------------------------
@pytest.mark.slow
def test_a_board_has_a_row_per_run_a_curve_per_run_and_its_gaps(board):
    names = ["FedAvg", "FedProx", "FedGCR"]
    found = leaderboard.collect([board], names, keeping=Keeping())
    rows = found.runs[["protocol", "method", "seed"]].to_numpy().tolist()
    wanted = itertools.product((0, 1), ("FedAvg", "FedProx"))
    assert rows == [[board, name, seed] for seed, name in wanted]
    assert found.gaps["method"].tolist() == ["FedGCR"]
    assert found.curves.groupby(["method", "seed"]).ngroups == 4
    assert set(leaderboard.MEASURES) <= set(found.runs)
    one = leaderboard.collect([board], names[:1], [5], Keeping(length=0.5))
    assert one.runs["seed"].tolist() == [5]
    assert one.curves["round"].max() == 2


def test_measures_are_what_a_slow_reading_of_the_history_gives(board):
    run = leaderboard.run_of("FedAvg", board, seed=1)
    run.fit(4, progress=False)
    found = leaderboard.measured(run.history, run.federation, last_rounds=2)
    rows = run.history.measured
    ends = {}
    for round, split, domain, _, metric, value in rows:
        if (split, metric) == ("test", "accuracy") and domain and round in (2, 4):
            ends.setdefault(domain, []).append(value)
    each = np.array([np.mean(values) for values in ends.values()])
    assert len(each) > 1 and (each != each[0]).any()
    assert found["score"] == pytest.approx(each.mean())
    assert found["worst_domain"] == pytest.approx(each.min())
    assert found["sigma_domain"] == pytest.approx(each.std())
    assert found["sigma_type"] == pytest.approx(each.std())  # two clients of each type
    assert np.isnan(found["held_out"])
    in_rounds = [b for r, *_, b in run.history.traffic if r > 0]
    assert found["kilobytes"] == pytest.approx(sum(in_rounds) / 4 / 1000)


@pytest.mark.parametrize("tested", [0, 1])
def test_what_has_no_test_samples_has_no_measure(tested):
    data = tiny_data(num=60, owners=3)
    data = data.select(np.flatnonzero(~data.is_test | (data.domain < tested)))
    clients = Federation.build(data, by_domain(data, 2, 0), val=0.3)
    run = Run(methods.FedAvg(), clients, tiny_cnn, LocalTraining(batch_size=16))
    found = leaderboard.measured(run.fit(1, progress=False), clients, last_rounds=1)
    assert np.isfinite([found["score"], found["worst_domain"]]).all() == bool(tested)
    assert np.isnan(found["sigma_type"]) and found["sigma_client"] >= 0


def test_a_domain_that_nobody_has_is_the_score(board):
    name = tiny_data().domain_names[-1]
    rules = leaderboard.protocol(board)
    run = settings.run_of(settings.Setting("FedAvg"), rules, held_out=name)
    run.fit(2, progress=False)
    found = leaderboard.measured(run.history, run.federation, last_rounds=1)
    table = run.history.table()
    last = table[(table["round"] == 2) & (table["metric"] == "accuracy")]
    unseen = last[(last["split"] == "held_out") & (last["domain"] == name)]["value"]
    assert found["score"] == found["held_out"] == pytest.approx(unseen.item())
    curve = leaderboard.by_round(table.assign(protocol=board))
    assert curve["value"].iloc[-1] == pytest.approx(unseen.item())


def test_own_layers_are_the_score_of_clients_that_have_them(board):
    run = leaderboard.run_of("FedAvg", board)
    history = run.fit(2, progress=False)
    for name in tiny_data().domain_names:
        history.add(2, "test", "personal_accuracy", 1.0, domain=name)
    assert leaderboard.measured(history, run.federation, last_rounds=1)["score"] == 1
    curve = leaderboard.by_round(history.table().assign(protocol=board))
    assert curve["value"].iloc[-1] == 1


# ---- runs that are there already ----------------------------------------------------
def scores(found) -> list[float]:
    return found.runs["score"].tolist()


def test_what_is_named_twice_runs_once(board, fits):  # noqa: F811
    twice = [board, board], ["FedAvg", "FedAvg"], [0, 0]
    found = leaderboard.collect(*twice, Keeping(length=0.25))
    assert len(found.runs) == len(fits) == 1
    assert len(leaderboard.blocks(found.runs)) == 1


@pytest.mark.slow
def test_runs_of_other_folders_are_copied_and_the_union_is_read(board, fits, tmp_path):  # noqa: F811
    cells = tmp_path / "sweeps"
    for seed in (0, 1):  # as two cells of a sweep
        keeping = Keeping(cells / f"seed-{seed}" / "runs")
        leaderboard.collect([board], ["FedAvg"], [seed], keeping)
    assert len(fits) == 2
    keeping = Keeping(tmp_path / "own", (f"{cells}/*/runs", str(tmp_path / "absent")))
    both = leaderboard.collect([board], ["FedAvg", "FedProx"], keeping=keeping)
    assert len(fits) == 2 + 2, "FedAvg was there; FedProx was not"
    assert len(list((tmp_path / "own").glob("*.zip"))) == 4
    again = leaderboard.collect(
        [board], ["FedAvg", "FedProx"], keeping=Keeping(tmp_path / "own")
    )
    assert len(fits) == 4
    assert scores(again) == scores(both)
    assert scores(
        leaderboard.collect([board], ["FedAvg", "FedProx"], keeping=Keeping())
    ) == scores(both)


SHARED = [
    ("04_fedfa", "digit_domains", ("FedAvg", "FedFA", "FedBN")),
    ("05_fisc", "picture_styles", ("FISC", "FedDG-GA")),
    ("06_fedgcr", "digit_types", ("VPT", "FedGCR", "q-FFL")),
    ("04_fedfa", "digits5", ("FedAvg", "FPL")),
    ("05_fisc", "pacs", ("FISC", "FedAvg")),
    ("06_fedgcr", "pacs_types", ("VPT", "FedGR", "FedMix")),
]


@pytest.mark.slow
@pytest.mark.parametrize(("chapter", "name", "same"), SHARED)
def test_a_run_of_a_chapter_is_the_same_run(chapter, name, same, monkeypatch):
    if protocols.protocol(name).dataset in ("digits5", "pacs"):
        monkeypatch.setenv("FEDLAB_DATA", str(shared("data")))
        monkeypatch.setenv("FEDLAB_WEIGHTS", str(shared("weights")))
    comparison = Comparison(Chapter(chapter, {"device": "cpu"}), name)
    left_out = leaderboard.protocol(name).held_out[0]
    for label in same:
        theirs = "FedAvg" if label == "VPT" else label  # what chapter 06 calls it
        run = comparison.run_of(theirs, seed=1, left_out=left_out)
        mine = leaderboard.run_of(label, name, 1)
        assert mine.describe() == run.describe()
        assert mine.evaluate_every == run.evaluate_every


# ---- a method of one's own ----------------------------------------------------------
@dataclass(frozen=True)
class Mine(methods.FedProx):
    """FedProx whose server takes a part of the step."""

    part: float = 0.5

    def aggregate(self, server, messages):
        after = super().aggregate(server, messages)
        mixed = {
            name: new.lerp(server.weights[name], 1 - self.part)
            if new.is_floating_point()
            else new
            for name, new in after.weights.items()
        }
        return replace(after, weights=mixed)


@pytest.mark.slow
def test_a_method_of_ones_own_stands_on_the_board(board):
    extra = {"Mine": Mine(part=0.1), "all of it": Mine(part=1.0)}
    found = leaderboard.collect([board], ["FedProx"], [0], Keeping(), extra)
    assert found.runs["method"].tolist() == ["FedProx", *extra]
    scores = found.curves[found.curves["metric"] == "loss"]
    loss = scores.groupby("method")["value"].mean()
    assert loss["all of it"] == loss["FedProx"] < loss["Mine"]
    assert "Mine" in set(leaderboard.ranks(found.runs)["method"])


def test_it_inherits_what_the_protocol_gives_its_parent(board):
    def run_as(mine):
        return settings.run_of(settings.setting_for(mine), leaderboard.protocol(board))

    method = run_as(Mine(part=0.2)).method
    assert (method.mu, method.weighting, method.part) == (0.5, "equal", 0.2)
    assert run_as(Mine(mu=3.0)).method.mu == 3.0

    class Styled(methods.FISC):
        """A child without settings of its own."""

    class Prompted(methods.QFFL):
        """A child whose parent has a training of its own."""

    pacs = leaderboard.protocol("pacs")
    styled = settings.method_of(settings.setting_for(Styled()), pacs)
    assert styled.network == pacs.own["FISC"].fields["network"] != "small"
    assert type(styled) is Styled
    assert settings.setting_for(Prompted()).label == "q-FFL"
    with pytest.raises(ValueError, match=r"as in Mine\(\), found <class"):
        settings.setting_for(Prompted)
    nobody = replace(leaderboard.protocol("digit_domains"), cohort=0)
    with pytest.raises(ValueError, match=r"num_clients must be .* found 0"):
        settings.run_of(settings.Setting("FedAvg"), nobody)


def test_it_has_gaps_and_names_that_are_new(board):
    @dataclass(frozen=True)
    class Prompts(methods.VPT):
        """Needs a transformer."""

    found = leaderboard.collect([board], ["FedAvg"], [0], Keeping(), {"p": Prompts()})
    assert found.gaps["method"].tolist() == ["p"]
    assert "frozen vision transformer" in found.gaps["reason"][0]
    with pytest.raises(ValueError, match=r"new names in extra, found .*FedProx"):
        leaderboard.collect([board], ["FedAvg"], extra={"FedProx": Mine()})


@pytest.mark.slow
def test_changed_code_is_run_again(board, tmp_path, fits):  # noqa: F811
    def collected(body: str) -> None:
        file = tmp_path / f"own_{len(list(tmp_path.glob('own_*')))}.py"
        lines = "from fedlab_support import FedAvg", "", "class Own(FedAvg):", body
        file.write_text("\n".join(lines), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("own", file)
        own = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(own)
        keeping = Keeping(folder=tmp_path / "runs")
        leaderboard.collect([board], ["FedAvg"], [0], keeping, {"Mine": own.Own()})

    collected("    part = 0.5")
    assert [type(run.method).__name__ for run in fits] == ["FedAvg", "Own"]
    collected("    part = 0.5")
    assert len(fits) == 2, "the same code, read anew"
    collected("    part = 0.6")
    collected(
        "    part = 0.6\n    def loss(self, *it):\n        return super().loss(*it)"
    )
    assert [type(run.method).__name__ for run in fits[2:]] == ["Own", "Own"]


# ---- ranks --------------------------------------------------------------------------
def made_up(values: dict[tuple, dict[str, float]]) -> pd.DataFrame:
    """Runs with given scores: (protocol, seed) → method → score."""
    rows = [
        {
            **{"protocol": name, "held_out_domain": "", "seed": seed},
            **{"method": method, "score": score, "seconds": 1 / score},
        }
        for (name, seed), own in values.items()
        for method, score in own.items()
    ]
    return pd.DataFrame(rows)


BLOCKS = {
    ("a", 0): {"FedAvg": 0.8, "FPL": 0.9, "FedBN": 0.8},
    ("a", 1): {"FedAvg": 0.7, "FPL": 0.9, "FedBN": 0.6},
    ("b", 0): {"FedAvg": 0.4, "FPL": 0.3},
}


def test_shares_know_ties_and_gaps():
    shares = leaderboard.beaten(leaderboard.blocks(made_up(BLOCKS)))
    wanted = [[0.25, 1, 0.25], [0.5, 1, 0], [1, 0, np.nan]]
    np.testing.assert_allclose(shares.to_numpy(), wanted)


def test_a_data_set_counts_once_however_many_seeds_it_has():
    ranks = leaderboard.ranks(made_up(BLOCKS)).set_index("method")
    assert ranks.index.tolist() == ["FedAvg", "FPL", "FedBN"]
    wanted = [(0.375 + 1) / 2, (1 + 0) / 2, 0.125]
    np.testing.assert_allclose(ranks["beats"], wanted)
    assert ranks["num_protocols"].tolist() == [2, 2, 1]


def test_a_data_set_counts_once_also_for_a_method_with_fewer_seeds():
    some = {("a", seed): {"FedAvg": 0.8, "FPL": 0.9} for seed in range(3)}
    some |= {(name, 0): {"FedAvg": 0.8, "FPL": 0.7} for name in "bcd"}
    some["a", 1]["FedBN"] = 1.0
    some["b", 0]["FedBN"] = 0.1
    ranks = leaderboard.ranks(made_up(some)).set_index("method")
    assert ranks.loc["FedBN", "beats"] == (1 + 0) / 2


@pytest.mark.filterwarnings("error")
def test_a_method_without_any_opponent_has_no_rank():
    alone = {("a", 0): {"FedAvg": 0.8, "FPL": 0.9}, ("b", 0): {"FedBN": 0.8}}
    assert set(leaderboard.ranks(made_up(alone))["method"]) == {"FedAvg", "FPL"}
    assert leaderboard.ranks(made_up({("b", 0): {"FedBN": 0.8}})).empty


def test_there_is_an_interval_from_three_data_sets_on():
    ranks = leaderboard.ranks(made_up(BLOCKS))
    assert ranks[["low", "high"]].isna().all(axis=None)
    more = BLOCKS | {("c", 0): {"FedAvg": 0.5, "FPL": 0.7}}
    ranks = leaderboard.ranks(made_up(more)).set_index("method")
    assert ranks.loc["FedBN", ["low", "high"]].isna().all()
    whole = ranks.drop(index="FedBN")
    assert (whole["low"] <= whole["beats"]).all()
    assert (whole["high"] >= whole["beats"]).all()
    assert ranks.loc["FPL", ["low", "high"]].tolist() == [0, 1]


def test_a_data_set_that_is_drawn_twice_gets_other_blocks_each_time():
    """So a share averages six tosses of a coin; all are heads in 1.6 % of the draws."""
    won = {"FedAvg": 0.8, "FPL": 0.7}
    lost = {"FedAvg": 0.7, "FPL": 0.8}
    tossed = {(name, seed): (won, lost)[seed] for name in "abc" for seed in range(2)}
    ranks = leaderboard.ranks(made_up(tossed))
    assert ranks["low"].tolist() == pytest.approx([1 / 6] * 2)
    assert ranks["high"].tolist() == pytest.approx([5 / 6] * 2)


def test_less_is_better_where_it_is():
    ranks = leaderboard.ranks(made_up(BLOCKS), "seconds")
    assert (
        ranks["beats"].tolist() == leaderboard.ranks(made_up(BLOCKS))["beats"].tolist()
    )


def test_a_measure_that_nobody_has_is_refused():
    with pytest.raises(ValueError, match="expected a measure"):
        leaderboard.ranks(made_up(BLOCKS), "glory")
    runs = made_up(BLOCKS).assign(held_out=np.nan)
    with pytest.raises(ValueError, match="found none"):
        leaderboard.ranks(runs, "held_out")


def noise(num_sets: int, ahead: float, seed: int) -> pd.DataFrame:
    """Three seeds, six methods, the first ``ahead`` by so many deviations."""
    rng, values = np.random.default_rng(seed), {}
    for block in itertools.product("abcdefg"[:num_sets], range(3)):
        luck = rng.normal(0, 0.1)  # of the seed, the same for all
        own = 0.8 + luck + 0.01 * rng.standard_normal(6)
        own[0] += 0.01 * ahead
        values[block] = dict(zip(["FedAvg", *"vwxyz"], own, strict=True))
    return made_up(values)


@pytest.mark.slow
def test_luck_alone_is_hardly_ever_real_and_a_large_lead_is():
    false = [leaderboard.pairs(noise(4, 0, s))["is_real"].any() for s in range(15)]
    assert np.mean(false) <= 0.1
    found = leaderboard.pairs(noise(4, 6, 0))
    real = found[found["is_real"]]
    assert set(real["better"]) == {"FedAvg"} and len(real) == 5
    assert (found["low"] <= found["difference"]).all()


def test_pairs_subtract_inside_blocks_and_leave_out_single_seeds():
    runs = made_up(BLOCKS)
    found = leaderboard.pairs(runs).set_index(["better", "worse"])
    row = found.loc[("FPL", "FedAvg")]  # on b there is one seed, where it lost
    gaps = np.array([0.1, 0.2])
    assert row["difference"] == pytest.approx(gaps.mean())
    assert row["num_sets"] == 1
    from scipy.stats import t

    error = gaps.std(ddof=1) / np.sqrt(2)
    reach = t.isf(0.025 / 3, 1) * error  # three pairs
    assert row["high"] - row["difference"] == pytest.approx(reach)
    assert leaderboard.pairs(runs[runs["seed"] == 0]).empty
