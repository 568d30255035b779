"""`bootseer env` as it is typed."""

import json
import os
import shutil

import pytest
import trio

from bootseer.cli.env.env import env
from bootseer.cli.env.options import complete, complete_name
from bootseer.env.client import key as env_key
from bootseer.env.client.command_key import keys_of
from bootseer.env.client.options import RunOptions
from bootseer.env.snapshot import repository
from bootseer.errors import ConfigError, Conflict, Corrupt, NotFound
from bootseer.image.library import catalog as images
from bootseer.image.library.upload import UploadProgress

MAKE = "mkdir TARGET/lib; echo one >TARGET/lib/a.py; head -c 300000 /dev/zero >TARGET/lib/big"


def parts_of(words, target):
    asked = RunOptions(command=words, targets=[str(target)])
    return keys_of(asked, asked.targets, os.environ, os.getcwd(), "").parts


def test_every_command_has_help_with_an_example(says):
    for name, command in env.commands.items():
        assert "Example" in says(name, "--help"), name
        assert command.help


def test_key_says_what_decides_and_makes_nothing(says, installed):
    words = installed.words(MAKE)
    key = env_key.key_of(parts_of(words, installed.target))
    shown = says("key", "--target", installed.target, "--", *words)
    assert f"key: {key}\n" in shown and f"target {installed.target}: empty" in shown
    assert "what is run" not in shown
    assert "what is run" in says("key", "-v", "--target", installed.target, "--", *words)
    document = json.loads(says("key", "--json", "--target", installed.target, "--", *words))
    assert document["key"] == key and document["targets"] == [str(installed.target)]
    assert env_key.key_of(env_key.from_document(document, "x")) == key
    extra = says("key", "--key-extra", "x", "--target", installed.target, "--", *words)
    assert "extra: x" in extra and key not in extra
    assert not installed.target.exists() and not installed.root.exists()


def test_why(says, installed):
    words = ("--target", installed.target, "--", *installed.words(MAKE))
    assert "no run with these targets is known" in says("explain", *words)
    snapshot = installed.run(MAKE)
    for _ in range(2):  # what the command has made in its target is no change
        shown = says("explain", *words)
        assert "nothing has changed" in shown
        assert f"{snapshot.key[:12]} is there" in shown
        assert ("hold something" in shown) == installed.target.exists()
        shutil.rmtree(installed.target, ignore_errors=True)
    other = ("--target", installed.target, "--", *installed.words(MAKE + "; true"))
    shown = says("explain", *other)
    assert "command:\n    was sh -c" in shown and "is missing" in shown
    found = json.loads(says("explain", "--json", *other))
    assert [change["name"] for change in found["changes"]] == ["command"]
    assert found["last_key"] == snapshot.key and not found["is_there"]
    assert not installed.target.exists()


def test_why_after_a_run_that_found_it_there(says, installed):
    snapshot = installed.run(MAKE)
    words, targets = installed.words(MAKE), [str(installed.target)]
    trio.run(repository.note_run, installed.store, targets, parts_of(words, installed.target))
    shown = says("explain", "--target", targets[0], "--", *words)
    assert "nothing has changed" in shown and f"{snapshot.key[:12]} is there" in shown


def test_ls_and_show(says, installed):
    assert "no environment yet" in says("ls")
    snapshot = installed.run(MAKE)
    assert says("tag", snapshot.key[:12], "nightly") == f"nightly: {snapshot.key}\n"
    [row] = json.loads(says("ls", "--json"))
    assert row["key"] == snapshot.key and row["names"] == ["nightly"]
    assert row["stored_bytes"] == snapshot.image_bytes
    assert snapshot.key[:12] in says("ls")
    shown = says("show", "nightly")
    for text in (snapshot.key, snapshot.image, "the command took 1.23 s", "target", "command: sh"):
        assert text in shown
    assert "home: /x?[2J: a home folder" in shown
    document = json.loads(says("show", "--json", snapshot.key[:8]))
    assert document["names"] == ["nightly"] and document["findings"][0]["kind"] == "home"
    installed.damage(repository.manifest_object(snapshot.key), 2)
    [row] = json.loads(says("ls", "--json"))
    assert row["problem"]
    assert "nightly" in says("ls")


def test_names(says, call, installed):
    snapshot = installed.run(MAKE)
    says("tag", snapshot.key, "one")
    says("tag", "one", "two")
    assert [item.value for item in complete(None, None, "t")] == ["two"]
    assert [i.value for i in complete(None, None, snapshot.key[:3])] == [snapshot.key[:12]]
    says("untag", "one")
    assert [item.value for item in complete_name(None, None, "")] == ["two"]
    with pytest.raises(NotFound, match="env ls"):
        call("untag", "one")
    with pytest.raises(NotFound):
        call("show", "one")
    with pytest.raises(ConfigError):
        call("tag", "two", "x/y")


def test_rm(says, call, installed):
    snapshot = installed.run(MAKE)
    says("tag", snapshot.key, "one")
    with pytest.raises(NotFound):  # then none is removed
        call("rm", "one", "another")
    assert snapshot.key[:12] in says("rm", "one", snapshot.key)
    assert json.loads(says("ls", "--json")) == []
    image = installed.root / "images" / snapshot.image
    assert (image / "removed").exists()
    again = installed.run(MAKE)
    says("rm", "--now", again.key, "-q")
    assert not (installed.root / "images" / again.image).exists()


def test_diff_of_two(says, call, installed):
    first = installed.run(MAKE)
    second = installed.run(
        MAKE + "; echo two >TARGET/lib/a.py; rm TARGET/lib/big; ln -s lib TARGET/l"
    )
    assert says("diff", first.key, first.key) == "equal\n"
    code, output = call("diff", first.key[:12], second.key[:12])
    assert code == 1
    assert output.splitlines() == [
        f"+ {installed.target}/l  0 B",
        f"~ {installed.target}/lib/a.py  4 B -> 4 B",
        f"- {installed.target}/lib/big  300 kB",
        "1 added, 1 changed, 1 deleted",
    ]
    code, output = call("diff", "--json", first.key, second.key)
    found = json.loads(output)
    assert code == 1
    assert [[row["path"][-3:] for row in found[kind]] for kind in found] == [
        ["t/l"],
        [".py"],
        ["big"],
    ]


def test_diff_with_what_is_there(says, call, installed, tmp_path):
    snapshot = installed.run(MAKE)
    os.utime(installed.target / "lib/a.py")
    assert says("diff", snapshot.key) == "equal\n"
    (installed.target / "lib/a.py").write_text("two\n")
    code, output = call("diff", snapshot.key)
    assert code == 1 and output.startswith(f"~ {installed.target}/lib/a.py  4 B -> 4 B\n")
    code, output = call("diff", snapshot.key, "--folder", tmp_path / "none")
    assert code == 1 and "0 added, 0 changed, 3 deleted" in output
    with pytest.raises(ConfigError):
        call("diff", snapshot.key, "--folder", "/a", "--folder", "/b")


def test_diff_with_a_folder_that_held_something(says, call, installed):
    installed.target.mkdir()
    (installed.target / "before").write_text("x")
    (installed.target / "going").write_text("x")
    snapshot = installed.run(f"rm TARGET/going; {MAKE}", keep=True)
    assert not snapshot.is_whole
    assert says("diff", snapshot.key) == "equal\n"
    (installed.target / "going").write_text("back")
    (installed.target / "another").write_text("is no difference")
    code, output = call("diff", "-q", snapshot.key)
    assert (code, output) == (1, f"+ {installed.target}/going  4 B\n")


def test_restore(says, call, installed, tmp_path):
    snapshot = installed.run(MAKE)
    shutil.rmtree(installed.target)
    assert "300 kB in 4 files" in says("restore", snapshot.key)
    assert says("diff", snapshot.key) == "equal\n"
    (installed.target / "lib/a.py").write_text("mine")
    with pytest.raises(Conflict, match="--over"):
        call("restore", snapshot.key)
    says("restore", "--over", snapshot.key)
    assert says("diff", snapshot.key) == "equal\n"
    elsewhere = tmp_path / "new" / "place"
    assert "may not work elsewhere" in says("restore", snapshot.key, "--target", elsewhere)
    assert says("diff", snapshot.key, "--folder", elsewhere) == "equal\n"
    with pytest.raises(ConfigError):
        call("restore", snapshot.key, "--target", elsewhere, "--target", tmp_path)


def objects_of(snapshot):
    return {
        "manifest": repository.manifest_object(snapshot.key),
        "index": f"{repository.folder_of(snapshot.key, snapshot.capture)}/index",
        "squashfs": images.part_object(snapshot.image, 0),
        "image manifest": images.manifest_object(snapshot.image),
    }


def test_verify_finds_what_is_damaged(says, call, installed):
    snapshot = installed.run(MAKE)
    total = 0
    shown = says("verify", snapshot.key)
    assert "1 checked" in shown and "no damage" in shown
    assert json.loads(says("verify", "--all", "--json")) == [{"key": snapshot.key, "problems": []}]
    for what, name in objects_of(snapshot).items():
        at = 2 if what == "manifest" else -9
        installed.damage(name, at)
        code, output = call("verify", snapshot.key)
        assert code == Corrupt.exit_code, what
        assert f"{snapshot.key[:12]}: {name}: " in output
        assert "bootseer env rm" in output
        if what == "squashfs":
            assert f"{installed.target}/lib/big: its content is damaged" in output
        installed.damage(name, at)
        total += 1
    assert total == 4
    for what, name in objects_of(snapshot).items():
        if what != "manifest":
            (installed.root / name).rename(installed.root / "away")
            assert call("verify", "-q", snapshot.key)[0] == Corrupt.exit_code, what
            (installed.root / "away").rename(installed.root / name)
    assert call("verify", snapshot.key)[0] == 0


async def test_verify_compares_every_file_with_its_sha256(installed, monkeypatch):
    from bootseer.env.admin import verify

    snapshot = await trio.to_thread.run_sync(installed.run, MAKE + "; :>TARGET/empty")
    assert await verify.verify(installed.store, snapshot.key, UploadProgress()) == []
    whole = repository.read_index

    async def changed(store, snapshot):
        index = await whole(store, snapshot)
        for name in (b"0/lib/a.py", b"0/empty"):
            index.tree[name] = index.tree[name]._replace(digest=bytes(32))
        return index

    monkeypatch.setattr(repository, "read_index", changed)
    found = await verify.verify(installed.store, snapshot.key, UploadProgress())
    assert [problem.name for problem in found][1:] == [
        f"{installed.target}/empty",
        f"{installed.target}/lib/a.py",
    ]
    assert found[0].name.endswith("/index")


def test_verify_needs_one_or_all(call):
    assert call("verify")[0] == call("verify", "x", "--all")[0] == 2


def test_gc(says, installed):
    snapshot = installed.run(MAKE)
    installed.used(snapshot, 10**18)
    found = json.loads(says("gc", "--dry-run", "--json"))
    assert [(gone["kind"], gone["name"]) for gone in found["gone"]] == [
        ("environment", snapshot.key)
    ]
    assert says("ls", "--json") != "[]\n"
    assert f"environment {snapshot.key[:12]}: not used for" in says("gc")
    assert says("ls", "--json") == "[]\n"
