"""numba's cache of compiled kernels is used for the sources it was made from, and for no others."""

from __future__ import annotations

import pickle
from pathlib import Path

import numba
import pytest

from penstock.kernels import compilation
from penstock.kernels.compilation import Kernel, kernel


def add_one(number: int) -> int:
    return number + 1


#: A pickle of a class that no module has: what is left in an index when a bundle of arrays is renamed.
OF_A_CLASS_THAT_IS_GONE = b"cpenstock.kernels.compilation\nGone\n."


@pytest.fixture
def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    """Return a kernel with its own cache; its source stamp is set, because the kernel is not one of ours."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compilation, "stamp_sources", lambda _module: "of today")
    return kernel(add_one)


def test_an_index_of_other_sources_is_not_even_unpickled(stamped: Kernel) -> None:
    index = Path(stamped._cache._cache_file._index_path)
    index.parent.mkdir(parents=True, exist_ok=True)
    for version in (numba.__version__, f"{numba.__version__}|of yesterday"):
        index.write_bytes(pickle.dumps(version) + OF_A_CLASS_THAT_IS_GONE)
        assert kernel(add_one)(41) == 42


def test_an_index_of_the_same_sources_is_used(stamped: Kernel) -> None:
    assert stamped(41) == 42
    again = kernel(add_one)
    assert again(41) == 42
    assert sum(again.stats.cache_hits.values()) == 1
