"""Slurm's short form of node lists."""

import pytest

from bootseer.core.nodelist import MAX_NODES, expand


@pytest.mark.parametrize(
    "nodelist, names",
    [
        ("", []),
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("gpu[08-10,3],login1", ["gpu08", "gpu09", "gpu10", "gpu3", "login1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
        ("n[a-b]", []),
        ("n[]", []),
        ("n[3-1]", []),
        (f"n[1-{MAX_NODES + 1}]", []),
        ("n[1-999999999]", []),
        ("a[1-1000]b[1-1000]", []),
    ],
)
def test_expansion(nodelist, names):
    assert expand(nodelist) == names
