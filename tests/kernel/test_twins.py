"""A pure body that runs in compiled form elsewhere is edited with its twin."""

import json

import pytest

from ratelimited_executor._kernel.choice import compiled

from .twins import WRITTEN, compiled_bodies, pure_bodies

PURE, COMPILED, KNOWN = pure_bodies(), compiled_bodies(), json.loads(WRITTEN.read_text())


def test_every_pure_body_has_one_twin():
    """The table in the extension names each pure body that is marked, and no other."""
    assert PURE.keys() == COMPILED.keys() == KNOWN.keys()


@pytest.mark.parametrize("name", PURE)
def test_body_is_edited_with_its_twin(name):
    """Neither body has changed since both were last held side by side."""
    twins = (("the pure body", *PURE[name]), ("the compiled body", *COMPILED[name]))
    changed = [
        f"{side} ({file})" for (side, file, now), before in zip(twins, KNOWN[name], strict=True) if before != now
    ]
    if changed:
        pytest.fail(
            f"{name}: {' and '.join(changed)} changed. Make both do the same, rebuild the extension, and run "
            "`python -m tests.kernel.twins`"
        )


@pytest.mark.skipif(compiled is None, reason="no extension")
def test_name_is_paired_once():
    """A second pure body of a name is refused, and so is one that has no twin."""
    with pytest.raises(LookupError, match=r"two pure bodies of the name PlainQueue\.poll"):
        compiled.connect("PlainQueue.poll", None)
