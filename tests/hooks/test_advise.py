"""What is said at submission: true, once, and soon."""

import os
import pwd
import time

import pytest
import trio

from bootseer import config as settings
from bootseer.core.warm_plan import PlannedImage, PlannedName, PlannedRun, WarmPlan, object_name
from bootseer.errors import Denied, NotFound, Transient
from bootseer.image.library.catalog import give_name, manifest_object
from bootseer.slurm import advise
from bootseer.store.api.base import publish
from bootseer.store.memory import MemoryStore
from bootseer.store.outages import LASTS_S
from bootseer.store.wrappers.base import WrappedStore

USER = pwd.getpwuid(os.getuid()).pw_name
DIGEST = "ab" * 32


class Stuck(WrappedStore):
    """Answers nothing, by an error or not at all; counts the attempts."""

    def __init__(self, hangs):
        super().__init__(MemoryStore())
        self.hangs = hangs
        self.asked = 0

    async def around(self, operation, name, call):
        self.asked += 1
        if self.hangs:
            await trio.sleep_forever()
        raise Transient("connection refused")


@pytest.fixture
def store(monkeypatch, tmp_path):
    """Let the user have a store; returns how to replace it."""
    values = {"image.importer": True}
    monkeypatch.setattr(settings, "load", lambda: settings.Config(values))
    monkeypatch.setattr(advise, "user_folder", lambda uid: str(tmp_path))

    def use(store):
        for name in ("connect", "connect_images"):
            monkeypatch.setattr(advise, name, lambda config, user, backoff: store)
        return store

    use(MemoryStore())
    return use


def put(store, *images, runs=1):
    names = tuple(PlannedName(image.path, DIGEST) for image in images if "://" in image.path)
    plan = WarmPlan(USER, "k", images, (PlannedRun("c.1", 1, "cold", 1),) * runs, names)
    trio.run(publish, store, object_name("k"), plan.encode())


def ask(**values):
    return advise.advise({"BOOTSEER_KEY": "k", **{f"BOOTSEER_{k}": v for k, v in values.items()}})


@pytest.fixture
def image(tmp_path):
    path = tmp_path / "i.sqsh"
    path.write_bytes(bytes(32) + b"SIF_MAGIC" + bytes(100))
    return path


def test_a_first_start_is_recorded_where_it_can_be(store, image):
    (line,) = ask(IMAGE=str(image))
    assert line == (
        "key k: first start under this key: it is recorded, unless the image is known already"
    )


@pytest.mark.parametrize("known", [False, True])
def test_no_record_is_promised_of_a_path_that_is_not_here(store, image, known):
    if known:
        put(store(MemoryStore()), PlannedImage(str(image), "sqfs1-x", 1000, 100))
    image.unlink()
    (line,) = ask(IMAGE=str(image))
    assert line.endswith(
        f"{image} does not exist here; if that is so on the nodes too, nothing can be recorded"
    )
    assert "is recorded" not in line


def test_no_record_is_promised_of_what_is_no_image(store, image, tmp_path):
    image.write_text("#!/bin/sh\n")
    (line,) = ask(IMAGE=str(image))
    assert line.endswith(f"{image} is neither a squashfs nor a SIF: is it the right file?")
    (line,) = ask(IMAGE=str(tmp_path))
    assert "not a regular file" in line and "it is recorded" not in line
    image.write_bytes(b"hsqs" + bytes(200))
    (line,) = ask(IMAGE=str(image))
    assert "is no image here" in line and "it is recorded" not in line


def test_no_record_is_promised_of_what_the_user_may_not_read(store, image, monkeypatch):
    def refuse(path, *_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("bootseer.image.identity.os.open", refuse)
    monkeypatch.setattr(advise, "user_folder", lambda uid: refuse(uid))
    (line,) = ask(IMAGE=str(image))
    assert f"{image} is not readable for you here" in line and "it is recorded" not in line


def test_a_file_system_that_hangs_holds_nobody_up(store, image, monkeypatch):
    def hang(path):
        time.sleep(2)

    monkeypatch.setattr(advise, "has_image", hang)
    (line,) = ask(IMAGE=str(image))
    assert "does not answer within 0.1 s" in line


def test_a_name_that_the_store_does_not_have(store):
    (line,) = ask(IMAGE="bootseer://nosuch")
    assert "there is no image 'nosuch'" in line and line.endswith("nothing can be recorded")
    assert "it is recorded" not in line
    (line,) = ask(IMAGE=f"bootseer://{DIGEST}")
    assert f"there is no image {DIGEST}" in line


def test_an_image_store_that_the_user_may_not_read(store, monkeypatch):
    class Private(WrappedStore):
        async def around(self, operation, name, call):
            raise Denied(f"cannot open {name}")

    private = Private(MemoryStore())
    monkeypatch.setattr(advise, "connect_images", lambda config, user, backoff: private)
    (line,) = ask(IMAGE="bootseer://train")
    assert line.endswith("you may not read bootseer://train in its store; nothing can be recorded")


def test_a_name_that_the_store_has(store):
    mine = store(MemoryStore())
    trio.run(publish, mine, manifest_object(DIGEST), b"x")
    trio.run(give_name, mine, "train", DIGEST, 1)
    (line,) = ask(IMAGE="bootseer://train")
    assert "it is recorded" in line


def test_an_image_that_pyxis_imports_need_not_be_in_the_store(store):
    container = "_SLURM_SPANK_OPTION_pyxis_container_image"
    (line,) = advise.advise({"BOOTSEER_KEY": "k", container: "nvcr.io#nvidia/pytorch:24.05"})
    assert "it is recorded" in line


def test_an_image_is_named_only_if_it_is_this_starts(store, image):
    mine = store(MemoryStore())
    put(mine, PlannedImage("/last.sqsh", "sqfs1-x", 1_000_000, 100_000))
    (line,) = ask(IMAGE=str(image))
    assert "/last.sqsh" not in line and f"none with {image}: this one is recorded" in line
    container = "_SLURM_SPANK_OPTION_pyxis_container_image"
    (line,) = advise.advise({"BOOTSEER_KEY": "k", container: "nvcr.io#nvidia/pytorch:24.05"})
    assert "/last.sqsh" not in line
    put(mine, PlannedImage(str(image), "sqfs1-x", 1_000_000, 100_000))
    (line,) = ask()
    assert line == (f"key k: hot set known: 100 kB of 1 MB ({image}, the image of the last start)")
    (line,) = ask(IMAGE=str(image))
    assert line == f"key k: hot set known: 100 kB of 1 MB ({image})"


def test_a_start_without_an_image_is_promised_nothing(store):
    (line,) = ask()
    assert line == (
        "key k: first start under this key: give --bootseer-image=PATH|URI to have it recorded"
    )
    (line,) = ask(CKPT="file:///x")
    assert line == "key k: first start under this key"


@pytest.mark.parametrize("hangs", [False, True], ids=["refuses", "hangs"])
def test_a_store_that_does_not_answer_is_named_once_a_minute(store, image, hangs, monkeypatch):
    dead = store(Stuck(hangs))
    first = ask(IMAGE=str(image))
    assert len(first) == 1 and f"store {dead.url} does not answer" in first[0]
    assert "bootseer doctor" in first[0]
    assert ask(IMAGE=str(image)) == [] and dead.asked == 1
    image.unlink()
    (line,) = ask(IMAGE=str(image))  # what is known without the store
    assert line.startswith(f"key k: {image} does not exist here")
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + int((LASTS_S + 1) * 1e9))
    assert ask() == [first[0]] and dead.asked == 2


def test_an_error_that_is_an_answer_is_no_outage(store, image):
    class Corrupted(WrappedStore):
        async def around(self, operation, name, call):
            raise NotFound("x") if operation == "stat" else Denied("private")

    store(Corrupted(MemoryStore()))
    for _ in range(2):
        assert ask(IMAGE=str(image)) == ["key k: nothing known: private"]


def test_the_last_starts_image_may_have_been_removed_from_the_store(store):
    mine = store(MemoryStore())
    put(mine, PlannedImage("bootseer://gone", "sqfs1-x", 1_000_000, 100_000))
    (line,) = ask()
    assert "there is no image 'gone'" in line and line.endswith("nothing can be recorded")
