"""Rules of the house that a machine can watch."""

import re
from pathlib import Path

import fedlab_support
from fedlab_support import methods

PACKAGE = Path(fedlab_support.__file__).parent
CODE = {
    file: file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py"))
}


def where(pattern: str) -> list[str]:
    return [
        f"{file.relative_to(PACKAGE)}:{number}"
        for file, text in CODE.items()
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line)
    ]


def test_there_is_one_training_loop():
    assert len(where(r"\.backward\(")) == 1
    assert len(where(r"optimiser\.step\(")) == 1


def test_nothing_is_unpickled_and_nothing_seeds_globally():
    assert where(r"\bpickle\.|allow_pickle=True|weights_only=False") == []
    assert where(r"np\.random\.seed|random\.seed\(") == []
    assert len(where(r"torch\.manual_seed")) == 1  # forked, for initial weights


def test_every_public_name_exists_and_is_documented():
    assert len(fedlab_support.__all__) == len(set(fedlab_support.__all__))
    known = {kind.__name__ for kind in methods.catalogue().values()}
    others = set(fedlab_support.__all__) - known
    assert len(others) <= 43, "a short list is a promise that can be kept"
    for name in fedlab_support.__all__:
        assert getattr(fedlab_support, name).__doc__, name
