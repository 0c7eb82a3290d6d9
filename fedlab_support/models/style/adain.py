"""AdaIN style transfer, by networks that are shipped or read from files.

Styles are defined in ``statistics``, networks in ``network``; this module re-exports
their public names.

Source: Huang and Belongie, ICCV 2017.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from ...core.messages import Tensors
from ..pretrained import weights_file
from .network import POOL, StyleNetwork, mirrored
from .statistics import adain, per_image, pooled, style_of_each

SMALL = Path(__file__).parents[1] / "assets" / "style_small.safetensors"


@dataclass(frozen=True)
class Family:
    """Networks whose files have the same keys: encoder and mirrored decoder.

    mark:              a key that only this family has.
    widths, has_stem:  see ``mirrored``.
    levels:            names of the convolutions in order; the decoder uses them in
                       reverse. None: positions in the sequence.
    prefixes:          prefixes of their keys.
    """

    mark: str
    widths: tuple[int, ...]
    has_stem: bool = True
    levels: tuple[str, ...] | None = None
    prefixes: tuple[str, ...] = ("enc.", "dec.")

    def build(self) -> StyleNetwork:
        """The network, before its weights are loaded."""
        encoder, decoder = mirrored(self.widths, self.has_stem)
        stride = 2 ** self.widths.count(POOL)
        return StyleNetwork(encoder, decoder, self.widths[-1], stride)

    def keys(self, network: nn.Module) -> dict[str, str]:
        """The file's key for each name in the network's state."""
        names = {}
        for part, prefix in zip(("encoder", "decoder"), self.prefixes, strict=True):
            layers = getattr(network, part).named_children()
            places = [place for place, m in layers if isinstance(m, nn.Conv2d)]
            known = self.levels or places
            if part == "decoder" and self.levels:
                known = self.levels[: -len(places) - 1 : -1]
            for place, name in zip(places, known, strict=True):
                for kind in ("weight", "bias"):
                    names[f"{part}.{place}.{kind}"] = f"{prefix}{name}.{kind}"
        return names


VGG = (64, 64, POOL, 128, 128, POOL, 256, 256, 256, 256, POOL, 512)
OWN = Family("enc.1.weight", (24, POOL, 48, 64), has_stem=False)
FAMILIES = (
    Family("enc.29.weight", VGG),  # the paper's, up to relu4_1
    Family("enc.0.weight", VGG[:7]),  # up to relu3_1
    OWN,
    Family(
        "e4.conv0.weight",
        (16, 16, POOL, 32, 32, POOL, 64, 64, 64, 64, POOL, 128),
        levels=tuple(f"conv{n}" for n in (0, 11, 12, 21, 22, 31, 32, 33, 34, 41)),
        prefixes=("e4.", "d4."),
    ),
)


def style_network(source: str | Path = "small") -> StyleNetwork:
    """A frozen style network: the shipped pair, or one from a safetensors file.

    source:  "small", 64 channels, trained by ``fedlab_course.making``; or a file,
             as given or in the folder $FEDLAB_WEIGHTS, with the keys of the normalised
             VGG-19 and its decoder (up to relu3_1 or relu4_1), or of its 16 times
             smaller copy (level 4).
    Raises FileNotFoundError when there is no file, and ValueError, naming the first key
    that does not fit, for another file.
    """
    path = SMALL if source == "small" else weights_file(source)
    stored = _read(path)
    family = next((each for each in FAMILIES if each.mark in stored), None)
    if family is None:
        marks = ", ".join(each.mark for each in FAMILIES)
        raise ValueError(
            f"{path.name}: expected the keys of a style network, one of {marks}; found "
            f"{min(stored, default='none')!r} first; is it the file of a classifier?"
        )
    network = family.build()
    names = family.keys(network)
    _check(path.name, stored, names, network.state_dict(), family.prefixes)
    network.load_state_dict({name: stored[key].float() for name, key in names.items()})
    return network


def _read(path: Path) -> Tensors:
    """The tensors of a file."""
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path.name}: expected safetensors, found {error}") from error


def _check(file: str, stored: Tensors, names: dict, state: Tensors, prefixes) -> None:
    """Raise ValueError for the first key that is missing, of another shape or extra."""
    for name, key in names.items():
        wanted = tuple(state[name].shape)
        found = tuple(stored[key].shape) if key in stored else "none"
        if found != wanted:
            raise ValueError(f"{file}: expected {key} of shape {wanted}, found {found}")
    mine = {key for key in stored if key.startswith(prefixes)}
    if more := sorted(mine - set(names.values())):
        raise ValueError(f"{file}: expected no further key, found {more[0]}")
