"""What Pyxis and Enroot call an image, and what a store calls it."""

import pytest

from bootseer.core.reference import reference
from bootseer.slurm.options import to_be_imported

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("docker://bootseer://train:v2", "bootseer://train:v2"),
        ("bootseer://train:v2", "bootseer://train:v2"),
        ("docker://nvcr.io#nvidia/pytorch:24.01", "docker://nvcr.io#nvidia/pytorch:24.01"),
        ("docker://me@nvcr.io#nvidia/pytorch:24.01", "docker://nvcr.io#nvidia/pytorch:24.01"),
        ("docker://$oauthtoken@nvcr.io/nvidia/pytorch", "docker://nvcr.io/nvidia/pytorch"),
        (f"docker://ubuntu@{DIGEST}", f"docker://ubuntu@{DIGEST}"),
        (f"docker://me@reg.io/team/ubuntu@{DIGEST}", f"docker://reg.io/team/ubuntu@{DIGEST}"),
        (f"docker://reg.io/team/ubuntu@{DIGEST}", f"docker://reg.io/team/ubuntu@{DIGEST}"),
        ("dockerd://me@ubuntu", "dockerd://me@ubuntu"),
        ("docker://ubuntu", "docker://ubuntu"),
        ("/images/docker://me@ubuntu", "/images/docker://me@ubuntu"),
    ],
)
def test_an_image_has_one_name(uri, name):
    assert reference(uri) == name
    assert reference(name) == name


@pytest.mark.parametrize(
    ("container", "name"),
    [
        ("nvcr.io#nvidia/pytorch:24.01", "docker://nvcr.io#nvidia/pytorch:24.01"),
        ("docker://ubuntu", "docker://ubuntu"),
        ("dockerd://ubuntu", "dockerd://ubuntu"),
        ("bootseer://train:v2", "bootseer://train:v2"),
        ("", ""),
        ("/images/train.sqsh", ""),
        ("./train.sqsh", ""),
        ("../train.sqsh", ""),
        ("a\nb", ""),
        ("\udcff", ""),
        ("x" * 5000, ""),
    ],
)
def test_to_be_imported_returns_the_name_that_pyxis_imports(container, name):
    assert to_be_imported(container) == name
