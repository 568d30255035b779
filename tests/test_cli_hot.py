"""`bootseer hot` as it is typed, for images that no start was recorded of."""

import pytest
import trio
from click.testing import CliRunner

from bootseer.cli.image import hot
from bootseer.errors import NotFound
from bootseer.store.memory import MemoryStore


@pytest.fixture(autouse=True)
def store(monkeypatch):
    opened = MemoryStore()
    monkeypatch.setattr(hot, "with_store", lambda user, work: trio.run(work, opened, user))
    return opened


@pytest.mark.parametrize("name", ["show", "rebuild", "rm"])
@pytest.mark.parametrize("image", ["sqfs1-" + "0" * 64, "sqfs1-ad4b71018139", "image"])
def test_an_image_that_was_not_recorded_is_named_as_it_was_typed(
    name, image, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "image").write_bytes(b"x" * 4096)
    with pytest.raises(NotFound) as told:
        CliRunner().invoke(hot.hot, [name, image], catch_exceptions=False)
    assert str(told.value).startswith(f"no start from the image {image} was recorded: see `boot")


@pytest.mark.parametrize("name", ["show", "rebuild", "rm"])
def test_what_is_neither_a_digest_nor_a_file_is_a_missing_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match=f"{tmp_path}/nope does not exist"):
        CliRunner().invoke(hot.hot, [name, "nope"], catch_exceptions=False)
