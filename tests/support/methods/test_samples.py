"""What all said once, given back without one's own part, and drawn from fairly."""

import pytest
import torch
from scipy.stats import chisquare

from fedlab_support.methods.shared.samples import draw, gather, others

SHAPE = torch.tensor([3, 8, 8])


def said(values, labels=None) -> dict[str, torch.Tensor]:
    """One client's introduction: entries (n, 2) that can be told apart."""
    entries = torch.tensor(values, dtype=torch.float32)[:, None].expand(-1, 2)
    groups = {} if labels is None else {"labels": torch.tensor(labels)}
    return {"styles": entries, "image_shape": SHAPE, **groups}


PLAIN = {2: said([20, 21, 22]), 5: said([50]), 7: said([70, 71])}
LABELLED = {
    2: said([20, 21, 22], [3, 0, 3]),
    5: said([50], [0]),
    7: said([70, 71], [1, 0]),
}


def values(entries: torch.Tensor) -> list[int]:
    return entries[:, 0].int().tolist()


# ---- the server's side --------------------------------------------------------------
def test_a_bank_holds_all_entries_with_their_owners():
    bank = gather(PLAIN, "styles")
    assert values(bank["entries"]) == [20, 21, 22, 50, 70, 71]
    assert bank["owner"].tolist() == [2, 2, 2, 5, 7, 7]
    assert torch.equal(bank["group"], bank["owner"]), "each client is a group"
    assert bank["entries"].shape == (6, 2)


def test_a_bank_may_be_grouped_by_what_clients_said():
    bank = gather(LABELLED, "styles", "labels")
    assert bank["owner"].tolist() == [2, 2, 2, 5, 7, 7]
    assert bank["group"].tolist() == [3, 0, 3, 0, 1, 0]


def test_what_lies_beside_entries_stays_beside_them():
    with_shares = {
        k: {**each, "shares": 2 * each["styles"]} for k, each in LABELLED.items()
    }
    bank = gather(with_shares, "styles", "labels", beside=("shares",))
    assert bank.keys() == {"entries", "shares", "owner", "group"}
    assert torch.equal(bank["shares"], 2 * bank["entries"])
    mine = others(bank, 5)
    assert mine.keys() == {"entries", "shares", "sizes"}
    assert torch.equal(mine["shares"], 2 * mine["entries"])
    assert values(mine["entries"]) == values(
        others(gather(LABELLED, "styles", "labels"), 5)["entries"]
    )


def test_who_has_no_entry_is_in_the_bank_without_one():
    bank = gather({**PLAIN, 4: {**said([]), "styles": torch.zeros(0, 2)}}, "styles")
    assert bank["owner"].tolist() == [2, 2, 2, 5, 7, 7]
    assert values(others(bank, 4)["entries"]) == [20, 21, 22, 50, 70, 71]


@pytest.mark.parametrize(
    ("me", "entries", "sizes"),
    [
        (2, [50, 70, 71], [0, 0, 0, 0, 0, 1, 0, 2, 0]),
        (5, [20, 21, 22, 70, 71], [0, 0, 3, 0, 0, 0, 0, 2, 0]),
        (7, [20, 21, 22, 50], [0, 0, 3, 0, 0, 1, 0, 0, 0]),
        (4, [20, 21, 22, 50, 70, 71], [0, 0, 3, 0, 0, 1, 0, 2, 0]),
    ],
)
def test_a_client_gets_everybody_elses_entries_by_client(me, entries, sizes):
    mine = others(gather(PLAIN, "styles"), me)
    assert mine.keys() == {"entries", "sizes"}
    assert values(mine["entries"]) == entries
    assert mine["sizes"].tolist() == sizes and sizes[-1] == 0


@pytest.mark.parametrize(
    ("me", "entries", "sizes"),
    [
        (2, [50, 71, 70], [2, 1, 0, 0, 0]),
        (5, [21, 71, 70, 20, 22], [2, 1, 0, 2, 0]),
        (7, [21, 50, 20, 22], [2, 0, 0, 2, 0]),
    ],
)
def test_a_client_gets_everybody_elses_entries_by_class(me, entries, sizes):
    mine = others(gather(LABELLED, "styles", "labels"), me)
    assert values(mine["entries"]) == entries
    assert mine["sizes"].tolist() == sizes


def test_a_bank_of_one_is_refused():
    with pytest.raises(ValueError, match="at least two clients, found one"):
        others(gather({3: said([30, 31])}, "styles"), 3)


# ---- the client's side --------------------------------------------------------------
SIZES = torch.tensor([0, 2, 0, 9, 1, 0])
GROUP_OF = torch.tensor([1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4])


def drawn(num: int, group=None, seed: int = 0, sizes=SIZES) -> torch.Tensor:
    return draw(sizes, num, torch.Generator().manual_seed(seed), group)


def test_groups_are_equally_likely_whatever_their_size():
    positions = drawn(9_000)
    often = GROUP_OF[positions].bincount(minlength=6)
    assert often[[0, 2, 5]].sum() == 0, "empty groups are never drawn"
    assert chisquare(often[[1, 3, 4]]).pvalue > 1e-3


def test_within_a_group_every_entry_is_as_likely():
    often = drawn(9_000).bincount(minlength=12)
    assert chisquare(often[:2]).pvalue > 1e-3
    assert chisquare(often[2:11]).pvalue > 1e-3
    assert len(often) == 12


@pytest.mark.parametrize("wanted", [1, 3, 4])
def test_a_wanted_group_gives_its_own_entries_only(wanted):
    positions = drawn(300, torch.full((300,), wanted))
    assert set(positions.tolist()) == set((wanted == GROUP_OF).nonzero()[:, 0].tolist())


@pytest.mark.parametrize("wanted", [0, 2, 5, 6, 1_000])
def test_an_empty_or_unknown_group_gives_any_entry(wanted):
    often = drawn(6_000, torch.full((6_000,), wanted)).bincount(minlength=12)
    assert len(often) == 12 and chisquare(often).pvalue > 1e-3


def test_wishes_may_be_mixed():
    wanted = torch.tensor([1, 0, 4, 3] * 50)
    positions = drawn(200, wanted)
    has_any = SIZES[wanted] > 0
    assert torch.equal(GROUP_OF[positions][has_any], wanted[has_any])
    assert positions.max() < 12 and positions.min() >= 0


def test_the_stream_decides_the_draw():
    assert torch.equal(drawn(20), drawn(20))
    assert not torch.equal(drawn(20), drawn(20, seed=1))
    assert drawn(5, sizes=torch.tensor([0, 1, 0])).tolist() == [0] * 5
