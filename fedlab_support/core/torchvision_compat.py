"""Import torchvision next to a CPU build of torch.

The ordinary torchvision wheel was compiled for CUDA. Next to a CPU build of torch its
compiled part cannot load, and ``import torchvision`` stops at *operator
torchvision::nms does not exist*: Python code registers two operators of object
detectors whose schemas the compiled part would have declared. Declaring the schemas is
enough for transforms, data sets and networks, in torchvision and in timm. A torchvision
that was compiled for the CPU declares them itself, and a second declaration is an
error, so the import is tried first.

``import fedlab_support`` installs the repair for every later ``import torchvision`` or
``import timm`` of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import torch

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_declared: list[torch.library.Library] = []  # keeps the declarations alive


def install() -> None:
    """Repair every later import of torchvision that needs it."""
    if not any(type(finder).__name__ == _Finder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds torchvision where Python does, and repairs it while it is imported."""

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        """The usual answer, for torchvision with a loader that repairs."""
        if name != "torchvision":
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _run_repaired(run, module)
        return spec


def _run_repaired(run: Callable[[ModuleType], None], module: ModuleType) -> None:
    """Run a module; declare the operators and run it again if it lacks them.

    Where torch has CUDA, missing operators mean that the two packages are incompatible,
    and the error stands.
    """
    try:
        run(module)
    except RuntimeError as error:
        is_known = "operator torchvision::" in str(error)
        if torch.version.cuda is not None or not is_known:
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name, schema in _SCHEMAS.items():
            if not hasattr(torch.ops.torchvision, name):
                library.define(schema)  # without an implementation
        _declared.append(library)
        run(module)
