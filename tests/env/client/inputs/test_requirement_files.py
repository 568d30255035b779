"""Files that decide what a command installs, by the names that they are given."""

import hashlib

import pytest

from bootseer.env.client.inputs import digest, requirement_files
from bootseer.env.client.inputs.digest import KeyProblem, file_digest
from bootseer.env.client.inputs.requirement_files import RequirementFiles, local_path

ABSENT = "absent"


@pytest.fixture
def files(tmp_path):
    return RequirementFiles(str(tmp_path), {"SET": "a"})


@pytest.mark.parametrize(
    ("data", "text"),
    [(b"#!/bin/sh", "#!/bin/sh"), (b"larger than", None), (b"\x7fELF\0", None)],
    ids=["as long as a text can be", "longer", "no text"],
)
def test_of_a_program_a_script_is_read_and_all_else_is_digested(
    files, tmp_path, monkeypatch, data, text
):
    for module in (requirement_files, digest):
        monkeypatch.setattr(module, "MAX_TEXT_BYTES", 9)
    (tmp_path / "a").write_bytes(data)
    assert files.read_script(str(tmp_path / "a")) == text
    assert files.parts == {"file a": str(file_digest(str(tmp_path / "a")))}


def test_a_program_that_is_no_file_is_no_part(files, tmp_path):
    assert files.read_script(str(tmp_path)) is None
    assert files.parts == {}


def test_as_many_files_as_there_may_be_are_taken(files, tmp_path, monkeypatch):
    monkeypatch.setattr(requirement_files, "MAX_FILES", 2)
    files.archive("a")
    files.archive("b")
    with pytest.raises(KeyProblem, match="more than 2 files"):
        files.archive("c")


def test_a_file_is_named_from_the_folder_of_the_command_or_by_its_whole_path(files, tmp_path):
    for path in (tmp_path / "d/a", "b", tmp_path, "/none/c"):
        files.archive(str(path)) if path != tmp_path else files.local(".", "a.txt", str(tmp_path))
    assert list(files.parts) == ["file d/a", "file b", "project .", "file /none/c"]


def test_what_is_nowhere_is_absent_where_it_is_looked_for_first(files, tmp_path):
    cwd, folder = str(tmp_path), str(tmp_path / "d")
    files.requirement_lines("./a.whl\n-f links\n", cwd, folder, "a.txt")
    assert files.parts == {"file a.whl": ABSENT, "file d/links": ABSENT}


def test_what_is_on_another_machine_is_no_part(files, tmp_path):
    lines = "https://host/a.whl\nb @ https://host/b.whl\n-f https://host/links\n"
    files.requirement_lines(lines, str(tmp_path), str(tmp_path), "a.txt")
    assert files.parts == {}


def test_variables_that_are_set_are_put_in_and_others_stay(files, tmp_path):
    files.requirement_lines("./${SET}.whl\n./${UNSET}.whl", str(tmp_path), "/", "a.txt")
    assert list(files.parts) == ["variable SET", "file a.whl", "file ${UNSET}.whl"]


def test_distributions_are_told_by_their_names_and_content(files, tmp_path):
    whole = hashlib.sha256()
    for name in ("a.whl", "b.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
        for field in (name.encode(), str(file_digest(str(tmp_path / name))).encode()):
            whole.update(len(field).to_bytes(8, "little") + field)
    (tmp_path / "notes.txt").touch()
    files.links(".", str(tmp_path))
    assert files.parts == {"distributions in .": f"sha256:{whole.hexdigest()}, 2 files"}


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("d/pkg", "d/pkg"),
        (".", "."),
        ("a.tar.gz", "a.tar.gz"),
        ("file:pkg", "pkg"),
        ("file://localhost/a%20b#sha256=0", "/a b"),
        ("a @ ./b ; python_version > '3'", "./b"),
        ("./there[x]", "./there[x]"),
        ("./without[x]", "./without"),
        ("./without#egg=a", "./without"),
        ("pkg", ""),
        ("pkg[x]>=1", ""),
        ("https://host/a.whl", ""),
        ("; python_version > '3'", ""),
    ],
)
def test_a_path_is_told_from_a_name(tmp_path, spec, path):
    for name in ("there", "there[x]", "without"):
        (tmp_path / name).mkdir()
    assert local_path(spec, [str(tmp_path)]) == path
