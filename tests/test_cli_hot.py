"""`bootseer hot` as it is typed, for images that no start was recorded of."""

import json

import pytest
import trio
from click.testing import CliRunner

from bootseer.cli.image import hot
from bootseer.core.warm_plan import PLANS, PlannedImage, PlannedRun
from bootseer.errors import ConfigError, NotFound
from bootseer.image.hot.hotset import HotRange, HotSet
from bootseer.image.hot.repository import hot_set_name
from bootseer.startup.plans import add_run
from bootseer.store.api.base import publish
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


def recorded(store, *images):
    """Record a start from each image, given by digest and names."""

    async def record():
        for digest, names in images:
            hot_set = HotSet(digest, 1 << 20, ("c.1",), (HotRange(0, 4096, 1, 1_000_000),))
            await publish(store, hot_set_name(digest), hot_set.encode())
            for number, name in enumerate(names):
                planned = (PlannedImage(name, digest, 1 << 20, 4096),)
                run = PlannedRun("c.1", 1, "cold", 1)
                await add_run(store, "u", f"{digest}.{number}", run, planned)
        await publish(store, f"{PLANS}/damaged.json", b"x")

    trio.run(record)


ONE, TWO = "sqfs1-" + "1" * 64, "sqfs1-" + "12" * 32


def test_the_list_has_the_names_that_jobs_had_for_an_image(store):
    recorded(store, (ONE, ["/b.sqsh", "/a.sqsh"]), (TWO, []))
    said = CliRunner().invoke(hot.hot, ["ls"], catch_exceptions=False).stdout
    assert "/a.sqsh, /b.sqsh" in next(line for line in said.splitlines() if ONE[:18] in line)
    told = CliRunner().invoke(hot.hot, ["ls", "--json"], catch_exceptions=False).stdout
    found = {each["digest"]: each["names"] for each in json.loads(told)}
    assert found == {ONE: ["/a.sqsh", "/b.sqsh"], TWO: []}


def test_the_first_digits_of_a_digest_are_enough(store):
    recorded(store, (ONE, []), (TWO, []))
    assert ONE in CliRunner().invoke(hot.hot, ["show", ONE[:18]], catch_exceptions=False).stdout
    with pytest.raises(ConfigError, match="begins 2 digests"):
        CliRunner().invoke(hot.hot, ["show", "sqfs1-1"], catch_exceptions=False)
    CliRunner().invoke(hot.hot, ["rm", TWO[:18]], catch_exceptions=False)
    with pytest.raises(NotFound, match=f"from the image {TWO[:18]} was"):
        CliRunner().invoke(hot.hot, ["show", TWO[:18]], catch_exceptions=False)
