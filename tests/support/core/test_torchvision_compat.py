"""torchvision imports beside any build of torch, and nothing is touched beside CUDA.

Each case needs a fresh interpreter: an import happens once.
"""

import subprocess
import sys
import textwrap

import pytest


def python(code: str) -> str:
    """What a fresh interpreter prints; its traceback is the failure message."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# A torchvision whose import needs an operator, as the CUDA wheel's does, and which says
# how often it was tried: the branches are tested whatever is installed here.
STAND_IN = """
    import importlib, pathlib, sys, tempfile, torch
    folder = pathlib.Path(tempfile.mkdtemp())
    tries = folder / "tries"
    (folder / "torchvision.py").write_text(
        "import pathlib, torch\\n"
        f"with open({str(tries)!r}, 'a') as file: file.write('x')\\n"
        "for name in ('nms', 'qnms'):\\n"
        "    if not hasattr(torch.ops.torchvision, name):\\n"
        "        raise RuntimeError(f'operator torchvision::{name} does not exist')\\n"
    )
    sys.path.insert(0, str(folder))
    from fedlab_support.core import torchvision_compat as vision
"""


@pytest.mark.slow
def test_only_a_cpu_build_has_the_operators_declared_and_only_once():
    printed = python(
        STAND_IN
        + """
    def attempt(cuda):
        torch.version.cuda = cuda
        try:
            return importlib.import_module("torchvision")
        except RuntimeError as error:
            print(error, len(vision._declared))

    module = folder / "torchvision.py"
    needy = module.read_text()
    module.write_text("raise RuntimeError('disk on fire')")
    attempt(cuda=None)
    module.write_text(needy)
    attempt(cuda="13.0")
    print(tries.read_text(), hasattr(torch.ops.torchvision, "nms"))
    first, second = attempt(cuda=None), attempt(cuda=None)
    assert first is second and hasattr(torch.ops.torchvision, "qnms")
    print(tries.read_text(), len(vision._declared))
    """
    )
    assert printed.splitlines() == [
        "disk on fire 0",
        "operator torchvision::nms does not exist 0",
        "x False",
        "xxx 1",
    ]


@pytest.mark.slow
def test_a_torchvision_that_brings_its_operators_is_left_alone():
    printed = python(
        STAND_IN
        + """
    torch.version.cuda = None
    own = torch.library.Library("torchvision", "FRAGMENT")
    for schema in vision._SCHEMAS.values():
        own.define(schema)
    import torchvision
    print(tries.read_text(), len(vision._declared))
    """
    )
    assert printed == "x 0"


@pytest.mark.slow
def test_timm_in_the_code_of_others_is_repaired_once_the_package_is_imported():
    printed = python(
        """
        import fedlab_support, sys
        assert "torchvision" not in sys.modules
        import timm
        import torchvision
        from importlib import resources
        print(timm.is_model("vit_tiny_patch16_224"), torchvision.__name__)
        print(resources.files("torchvision").joinpath("__init__.py").is_file())
        """
    )
    assert printed.split() == ["True", "torchvision", "True"]


@pytest.mark.slow
def test_the_installed_torchvision_and_timm_import_from_several_threads():
    printed = python(
        """
        import importlib
        from concurrent.futures import ThreadPoolExecutor
        import torch
        import fedlab_support
        with ThreadPoolExecutor(4) as pool:
            modules = set(pool.map(importlib.import_module, 8 * ["torchvision"]))
        import timm
        from torchvision import datasets, models, transforms
        image = transforms.functional.resize(torch.zeros(3, 8, 8), [4, 4])
        print(len(modules), tuple(image.shape), timm.is_model("vit_tiny_patch16_224"))
        """
    )
    assert printed == "1 (3, 4, 4) True"
