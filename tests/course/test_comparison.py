"""A chapter's settings under one protocol, and its questions."""

import re
from dataclasses import replace

import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.display import Image, Markdown
from matplotlib.figure import Figure

from fedlab_course import dealing, protocols, settings
from fedlab_course.chapter import ROOT, Chapter
from fedlab_course.comparison import Comparison
from fedlab_course.printed import matched, printed
from fedlab_course.protocols import Protocol, protocol
from fedlab_course.settings import CHAPTERS, method_of
from fedlab_support.core.history import last
from fedlab_support.data import from_arrays
from fedlab_support.federation.partition.imbalance import type_sizes
from tests.course.test_leaderboard import LocalTraining, deal, tiny_cnn


@pytest.fixture
def comparison(monkeypatch, tmp_path) -> Comparison:
    """Chapter 04's settings under a protocol of seconds."""
    plan = Protocol(
        *("for tests", "digits", deal, tiny_cnn),
        *(LocalTraining(0.1, batch_size=16), 4, 2, None, (0, 1)),
    )
    monkeypatch.setitem(protocols.PROTOCOLS, "tiny", lambda: plan)
    protocol.cache_clear()
    space = {"__annotations__": {"device": str}, "device": "cpu"}
    space |= {"runs_dir": str(tmp_path / "runs"), "figures_dir": str(tmp_path)}
    space["kept_in"] = [str(tmp_path / "finished" / "*.zip")]
    yield Comparison(Chapter("04_fedfa", space), "tiny", rounds=1)
    protocol.cache_clear()


def score(table: pd.DataFrame) -> pd.DataFrame:
    kept = "metric == 'accuracy' and split == 'test' and domain == ''"
    return last(table.query(kept), 1)


def test_a_setting_changes_its_method_and_its_protocol_only():
    found, rules = settings.fedgcr(), protocol("digit_types")
    assert method_of(found["FedGC"], rules).num_groups == 5
    fewer = found["FedGCR, T -2"]
    assert method_of(fewer, fewer.change(rules)).num_groups == 3
    order = found["FedGCR, swapped"].change(rules).order
    assert order[0] == "lowres" and set(order) == set(rules.order)
    assert rules.order[0] == "scanned"
    paper = protocol("paper: office_home")
    assert method_of(settings.fisc()["FISC"], paper).size_weight == 0.1
    assert method_of(settings.fisc()["FISC, γ2 0.5"], paper).size_weight == 0.5


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_questions_name_settings_and_every_setting_has_a_method(chapter):
    make_settings, make_questions = CHAPTERS[chapter]
    made = make_settings()
    for names in make_questions(made).values():
        assert names and set(names) <= set(made)
        assert len(set(names)) == len(names)
    rules = protocol("digit_types" if chapter == "06_fedgcr" else "pacs")
    for setting in made.values():
        changed = setting.change(rules)
        assert method_of(setting, changed).label == setting.label


def test_unknown_names_are_refused_before_anything_runs(comparison):
    comparison.chapter._variables["methods"] = ["FedAvg", "FedNope"]
    comparison.chapter._variables["questions"] = ["components"]
    comparison.expect("questions")
    with pytest.raises(ValueError, match=r"methods must be among .*\['FedNope'\]"):
        comparison.expect("methods")


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [[0, 1], [1]])
def test_a_question_is_answered_by_its_settings_over_common_seeds(comparison, seeds):
    done = comparison.sweep(name=["FedAvg", "FedFA"], seed=seeds)
    runs = comparison.ask(["sources"], done, score, seed=[0])
    assert set(runs["name"]) == {"FedAvg", "FedFA", "FedFA-R", "FedFA-C"}
    figure = comparison.answer("sources", "Whose variance")
    assert isinstance(figure, Figure)
    assert figure.data["name"].tolist() == comparison.questions["sources"]
    assert set(figure.data["num_seeds"]) == {1}


def test_a_question_that_was_not_asked_shows_a_finished_run(comparison, capsys):
    assert isinstance(comparison.answer("norms", ""), Image)
    assert "profile real" in capsys.readouterr().out
    comparison.questions["nothing yet"] = ["FedAvg"]
    assert isinstance(comparison.answer("nothing yet", ""), Markdown)


def test_runs_differ_by_the_clients_that_are_asked_for(comparison):
    assert len(comparison.federation()) == 4
    name = comparison.federation().data.domain_names[0]
    left = comparison.run_of("FedAvg", left_out=name).federation
    assert left.held_out_domains == (name,) and len(left) == 2


def test_a_question_on_a_papers_data_has_its_numbers(comparison):
    comparison.name = "paper: office_caltech10"
    done = comparison.sweep(name=["FedAvg", "FedFA"], seed=[0])
    comparison.ask(["fusion"], done, score, seed=[0])
    table = comparison.answer("fusion", "").data.set_index("name")
    theirs = printed("paper: office_caltech10", "fusion").set_index("name")["value"]
    assert len(theirs) == 2 and table["paper"].equals(
        theirs[table.index].rename("paper")
    )


def test_printed_numbers_belong_to_settings_and_stages():
    found = printed("paper: domainnet10 on densenet100", "all stages")
    known = settings.fedfa()
    asked = settings.fedfa_questions(known)["all stages"]
    assert set(found["name"]) == set(asked) and len(asked) == 16
    assert found["value"].max() == 73.4
    other = printed("paper: pacs_types", imbalance=10, metric="avg_type")
    assert set(other["name"]) <= set(settings.fedgcr()) and len(other) == 8
    assert printed("digits5_types").empty


def test_papers_numbers_stand_in_the_rows_they_belong_to():
    ours = pd.DataFrame({"name": ["FedAvg", "FedFA", "mine"], "left_out": "amazon"})
    numbers = printed("paper: office_caltech10", "unseen")
    both = matched(ours, numbers, "name", left_out="column")
    theirs = numbers[numbers["column"] == "amazon"].set_index("name")["value"]
    assert both["paper"].tolist()[:2] == theirs[["FedAvg", "FedFA"]].tolist()
    assert both["paper"].isna().tolist() == [False, False, True]
    assert matched(ours, numbers[:0], "name") is ours


# rounds, local epochs, batch, optimiser, rate, clients per round: FedFA+, Table 1;
# FISC, section 3.1, Table 4 and its program; FedGCR, its settings and its program
CONFIGURED = {
    "office_caltech10": (400, 1, 32, "sgd", 0.01, None),
    "domainnet10": (400, 1, 32, "sgd", 0.01, None),
    "cifar10, 0.6": (100, 10, 10, "sgd", 0.1, 10),
    "cifar10, 0.3": (100, 10, 10, "sgd", 0.1, 10),
    "tiny_imagenet, 0.6": (500, 5, 20, "sgd", 0.1, 5),
    "tiny_imagenet, 0.3": (500, 5, 20, "sgd", 0.1, 5),
    "femnist": (1000, 5, 32, "sgd", 0.05, 50),
    "pacs": (50, 1, 32, "adam", 3e-5, 20),
    "office_home": (50, 1, 32, "adam", 3e-5, 20),
    "iwildcam": (100, 1, 32, "adam", 3e-5, 24),
    "digits5_types": (50, 1, 32, "adamw", 1e-3, None),
    "domainnet10_types": (50, 1, 32, "adamw", 1e-3, None),
    "pacs_types": (50, 1, 32, "adamw", 1e-3, None),
}
CLIENTS = {"cifar10, 0.3": 100, "tiny_imagenet, 0.6": 100, "pacs": 100}
CLIENTS |= {"office_home": 100, "iwildcam": 243}


def test_the_papers_protocols_are_configured_as_printed():
    known = {n.removeprefix("paper: ") for n in protocols.PROTOCOLS if "paper" in n}
    assert known == CONFIGURED.keys()
    for name, printed_there in CONFIGURED.items():
        rules = protocol(f"paper: {name}")
        t = rules.training
        how = (t.epochs, t.batch_size, t.optimiser, t.lr)
        assert (rules.rounds, *how, rules.cohort) == printed_there, name
        clients = rules.deal.keywords.get("clients")
        assert clients == CLIENTS.get(name, clients), name


def test_the_papers_protocols_have_the_baselines_own_settings():
    made = settings.fedfa()
    for name in ("office_caltech10", "cifar10, 0.3", "femnist"):
        momentum = method_of(made["FedAvgM"], protocol(f"paper: {name}")).momentum
        assert momentum == 0.01, "of FedFA's code, see fedavgm.md"
    share = {
        n: method_of(made["FedMix"], protocol(f"paper: {n}")).share for n in CLIENTS
    }
    assert set(share.values()) == {0.05}
    assert method_of(made["FedMix"], protocol("paper: femnist")).share == 0.2
    assert method_of(made["FedAvgM"], protocol("digits5")).momentum == 0.9
    base = [
        method_of(made["FedSAM"], protocol(f"paper: {n}")).base
        for n in ("office_caltech10", "domainnet10", "cifar10, 0.3")
    ]
    assert base == ["adam", "adam", None]
    ccst = method_of(made["CCST"], protocol("paper: domainnet10"))
    assert ccst.form == "official", "FISC's form is for FISC's tables, see ccst.md"


def test_augmentations_have_the_constants_for_the_size_of_the_images():
    def of(name, rules):
        return settings.fedfa()[f"FedAvg + {name}"].change(rules).training.augment

    small, large = protocol("paper: cifar10, 0.3"), protocol("paper: domainnet10")
    assert (of("mixup", small).alpha, of("mixup", large).alpha) == (1.0, 0.2)
    exchange = of("MoEx", small), of("MoEx", large)
    assert [(e.p, e.label_share) for e in exchange] == [(0.25, 0.5), (0.5, 0.9)]
    unet = replace(small, augment=protocols.SLICES)
    assert of("MixStyle", large).stages == (1, 2) and of("mixup", unet).alpha == 0.2
    assert of("MixStyle", unet).stages == (1, 2, 3)


@pytest.mark.parametrize(
    ("name", "imbalance", "share", "inside"),
    [
        ("digits5_types", 10, 0.3, None),
        ("domainnet10_types", 10, 0.6, None),
        ("pacs_types", 10, 0.6, 10),
        ("digits5_types", 1, 0.3, None),
        ("domainnet10_types", 1, 0.3, None),
        ("pacs_types", 1, 0.6, None),
    ],
)
def test_the_papers_client_types_have_the_sizes_of_its_program(
    monkeypatch, name, imbalance, share, inside
):
    domain = np.repeat(["a", "b", "c", "d"], 10_000)
    inputs = np.random.default_rng(0).random((40_000, 1))
    data = from_arrays(inputs, np.arange(40_000) % 2, domain=domain)
    monkeypatch.setattr(dealing, "load", lambda name, size: data)
    how = {"order": data.domain_names, "imbalance": imbalance}
    dealt = protocol(f"paper: {name}").deal("…", "", 0.0, **how)
    sizes = [len(dealt.client(i).train) for i in range(len(dealt))]
    available = np.bincount(data.domain[~data.is_test])
    expected = type_sizes(available, imbalance, share, inside)
    assert sizes == np.concatenate(expected).tolist()


def test_clients_of_the_papers_have_the_printed_sizes(monkeypatch):
    sizes = protocols.SIZES["office_caltech10"]
    domain = np.repeat(np.arange(4), 800)
    images = np.zeros((len(domain), 1, 2, 2), np.uint8)
    labels = np.arange(len(domain)) % 10
    named = {"domain": np.array(sorted(sizes))[domain], "test": domain < 0}
    data = from_arrays(images, labels, **named)
    monkeypatch.setattr(dealing, "load", lambda name, size: data)
    rules = protocol("paper: office_caltech10")
    whole = rules.federation()
    assert dict(zip(sorted(sizes), whole.sizes, strict=True)) == sizes
    spared = rules.federation("webcam")
    assert len(spared.held_out) == 800 and len(spared) == 3


def test_domains_that_are_missing_are_named_with_where_they_come_from(monkeypatch):
    parts = np.repeat(["mnist", "usps", "mnistm"], 8)
    images, labels = np.zeros((24, 3, 2, 2), np.uint8), np.arange(24) % 2
    data = from_arrays(images, labels, domain=parts)
    monkeypatch.setattr(dealing, "load", lambda name, size: data)
    said = "digits5: .*found no synthdigits, svhn. To get them, run .*prepare mnist"
    with pytest.raises(ValueError, match=said):
        protocol("paper: digits5_types").federation()


def test_a_protocol_names_another_network():
    rules = protocol("paper: domainnet10 on resnet50")
    assert rules.network is protocols.NETWORKS["resnet50"]
    with pytest.raises(ValueError, match="network must be one of"):
        protocol("paper: domainnet10 on resnet51")
    form = protocol("paper: pacs").network.keywords
    assert form["norm"] == "frozen" and form["embedding"] == 2048


@pytest.mark.parametrize("name", list(CHAPTERS))
def test_what_a_chapter_asks_has_an_answer_in_every_profile(name):
    cells = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4).cells
    source = "\n".join(c.source for c in cells if c.cell_type == "code")
    guarded = r'(?m)^if "[^"]+" in questions:.*\n +.*$'
    asked = re.findall(r'\banswer\(\s*"([^"]+)"', re.sub(guarded, "", source))
    chapter = Chapter(name, {"__annotations__": {}})
    files = [question.replace(" ", "_") for question in asked]
    finished = [any(chapter.has_finished(f, p) for p in ("real", "")) for f in files]
    assert asked
    assert all(finished), dict(zip(asked, finished, strict=True))
