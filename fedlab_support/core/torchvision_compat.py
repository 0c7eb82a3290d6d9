"""Import torchvision next to a CPU build of torch.

A CPU build of torch is often installed next to the ordinary torchvision wheel, which
was compiled for CUDA. Its compiled part then cannot load, and ``import torchvision``
stops at *operator torchvision::nms does not exist*: Python code there describes
two operators (non-maximum suppression, used by object detectors) whose schemas the
compiled part would have declared. Declaring the schemas is enough for everything this
course uses, that is transforms, data sets and networks, in torchvision and in timm.

The import is tried first because a torchvision that *was* compiled for the CPU declares
the operators itself, and declaring a name twice is an error.

Importing this module installs the repair: every later ``import torchvision`` or
``import timm`` of this process has it, in anybody's code.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []  # keeps the declarations alive


def import_torchvision() -> ModuleType:
    """Import torchvision, repaired where that is needed; errors mean something else."""
    return importlib.import_module("torchvision")


class _Finder(MetaPathFinder):
    """Finds torchvision where Python does, and lets ``_Loader`` run it."""

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        """The usual answer, for torchvision with a loader of ours."""
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Runs a module; declares the operators and runs it again if it lacks them.

    Where torch has CUDA, missing operators mean that the two packages are incompatible,
    and the error stands.
    """

    def __init__(self, loader: Loader):
        self._loader = loader

    def __getattr__(self, name: str):
        """Whatever else a loader can do."""
        if name == "_loader":  # not yet set, in a copy
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As Python does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run it, twice if necessary."""
        try:
            self._loader.exec_module(module)
        except RuntimeError as error:
            is_known = "operator torchvision::" in str(error)
            if torch.version.cuda is not None or not is_known:
                raise
            library = torch.library.Library("torchvision", "FRAGMENT")
            for name, schema in _SCHEMAS.items():
                if not hasattr(torch.ops.torchvision, name):
                    library.define(schema)  # without an implementation
            _declared.append(library)
            self._loader.exec_module(module)


if not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
    sys.meta_path.insert(0, _Finder())
