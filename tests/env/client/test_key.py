"""The key of an environment: whatever decides what is installed changes it, and nothing else."""

import json
import os
import shutil
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootseer.env.client.inputs import digest
from bootseer.env.client.inputs import facts as gather_module
from bootseer.env.client.inputs.digest import (
    KeyProblem,
    text_digest,
    tree_digest,
    without_credentials,
)
from bootseer.env.client.inputs.facts import gather
from bootseer.env.client.inputs.probe import PythonFacts
from bootseer.env.client.key import (
    EMPTY,
    KeyChange,
    KeyFacts,
    KeyPart,
    compare,
    encode,
    from_document,
    key_of,
    parts_of,
    to_document,
)
from bootseer.errors import Corrupt, UnknownVersion

PYTHON = PythonFacts(
    "CPython", "3.11.2", "cp311", "linux", "/usr", "/usr", "x86_64", "glibc 2.36", "23.0"
)
PROJECT = '[project]\nname = "p"\n'
BUILT = PROJECT + '[build-system]\nrequires = ["setuptools"]\n'
ENVIRONMENT = "dependencies:\n  - a\n  - pip:\n    - -r pip.txt\n    - ./pkg\n  - b\n"
LOCKED = '[[package]]\nname = "p"\nsource = { %s = "%s" }\n'
POETRY = '[[package]]\nname = "p"\ndevelop = %s\n[package.source]\ntype = "%s"\nurl = "%s"\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder to run in, a home, and no machine around."""
    monkeypatch.setattr(gather_module, "ask_python", lambda path, environ, distribution: PYTHON)
    for folder in ("w", "home", "root", "bin"):
        (tmp_path / folder).mkdir()
    (tmp_path / "bin/python3").write_text("#!/bin/sh\n")
    (tmp_path / "bin/python3").chmod(0o755)
    return tmp_path


def facts(place, *command, targets=None, environ=None, **more):
    environ = {"HOME": f"{place}/home", "PATH": f"{place}/bin", **(environ or {})}
    targets = targets or {"/t": EMPTY}
    root = str(place / "root")
    cwd = str(place / "w")
    return gather(command, targets, environ=environ, cwd=cwd, root=root, **more)


def parts(place, *command, **more):
    return parts_of(facts(place, *command, **more))


def names(place, *command, **more):
    return {part.name for part in parts(place, *command, **more)}


def write(place, path, text="1\n"):
    path = place / "w" / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Command, files that are there, and the one of them that decides.
READ = [
    ("pip install -r a.txt", {}, "a.txt"),
    ("pip install -ra.txt", {}, "a.txt"),
    ("pip install -qr a.txt", {}, "a.txt"),
    ("pip install --requirement a.txt", {}, "a.txt"),
    ("pip install --requirement=a.txt", {}, "a.txt"),
    ("pip install -c a.txt b", {}, "a.txt"),
    ("pip install --constraint=a.txt b", {}, "a.txt"),
    ("pip install --build-constraint a.txt b", {}, "a.txt"),
    ("python3 -m pip install -r a.txt", {}, "a.txt"),
    ("pip install -r d/a.txt", {"d/a.txt": "-r b.txt\n"}, "d/b.txt"),
    ("pip install -r d/a.txt", {"d/a.txt": "b\n-c ../b.txt # c\n"}, "b.txt"),
    ("pip install -r a.txt", {"a.txt": "--requirement=\\\nb.txt\n"}, "b.txt"),
    ("pip install -r a.txt", {"a.txt": "\ufeff-r b.txt\n", "b.txt": "-r a.txt\n-r c.txt"}, "c.txt"),
    ("pip install ./a-1-py3-none-any.whl", {}, "a-1-py3-none-any.whl"),
    ("pip install a.tar.gz", {}, "a.tar.gz"),
    ("pip install a@file:%s/d%%20e/a.whl", {}, "d e/a.whl"),
    ("pip install file://%s/a.whl#sha256=0", {}, "a.whl"),
    ("pip install ./a.whl#sha256=0", {}, "a.whl"),
    ("pip install ./a.whl[x];python_version>'3'", {}, "a.whl"),
    ("pip install -r d/a.txt", {"d/a.txt": "./b.whl --hash=sha256:0\n"}, "b.whl"),
    ("pip install -r d/a.txt", {"d/a.txt": "./b.whl ; x == 'y'\n"}, "d/b.whl"),
    ("pip install -f links a", {}, "links/a-1.whl"),
    ("pip install --find-links=./links a", {}, "links/a-1.tar.gz"),
    ("pip install -r d/a.txt", {"d/a.txt": "-f links\n"}, "d/links/a-1.whl"),
    ("pip install -f page.html a", {}, "page.html"),
    ("pip install .", {"pyproject.toml": BUILT}, "src/p.py"),
    ("pip install ./pkg[x]", {"pkg/pyproject.toml": BUILT}, "pkg/p.py"),
    ("pip install -r a.txt", {"a.txt": "p @ ./pkg\n"}, "pkg/p.py"),
    ("pip install --group dev", {}, "pyproject.toml"),
    ("pip install --group d/pyproject.toml:dev", {}, "d/pyproject.toml"),
    ("pip install -r pylock.toml", {}, "pylock.toml"),
    ("pip install -r pylock.toml", {"pylock.toml": 'wheels = [{ path = "a.whl" }]'}, "a.whl"),
    ("pip-sync", {}, "requirements.txt"),
    ("pip-sync a.txt", {}, "a.txt"),
    ("uv pip install -r pyproject.toml", {}, "pyproject.toml"),
    ("uv pip install -r requirements.in --overrides o.txt", {}, "o.txt"),
    ("uv pip install a", {}, "uv.toml"),
    ("uv pip install a", {}, "../pyproject.toml"),
    ("uv pip sync a.txt", {}, "a.txt"),
    ("uv pip install ./a.whl", {}, "a.whl"),
    ("uv venv", {}, ".python-version"),
    ("uv sync", {"pyproject.toml": PROJECT}, "uv.lock"),
    ("uv sync", {}, "pyproject.toml"),
    ("uv sync --project p", {}, "p/uv.lock"),
    ("uv sync --directory p", {}, "p/uv.lock"),
    ("env UV_PROJECT=p uv sync", {}, "p/uv.lock"),
    ("uv sync", {"pyproject.toml": PROJECT}, "../uv.lock"),
    ("uv sync", {"uv.lock": LOCKED % ("directory", "pkg")}, "pkg/p.py"),
    ("uv sync", {"uv.lock": LOCKED % ("path", "a.whl")}, "a.whl"),
    ("uv sync --no-editable", {"uv.lock": LOCKED % ("editable", "pkg")}, "pkg/p.py"),
    ("env UV_NO_EDITABLE=1 uv sync", {"uv.lock": LOCKED % ("editable", "pkg")}, "pkg/p.py"),
    ("uv sync --no-editable", {"../pyproject.toml": BUILT}, "../p.py"),
    ("uv sync", {"pyproject.toml": PROJECT, "../uv.lock": LOCKED % ("path", "a.whl")}, "../a.whl"),
    (
        "uv sync --no-install-project",
        {"uv.lock": LOCKED % ("editable", ".") + LOCKED % ("directory", "pkg")},
        "pkg/p.py",
    ),
    (
        "uv sync",
        {"pyproject.toml": PROJECT + '[tool.uv.sources]\na = { path = "a.whl" }\n'},
        "a.whl",
    ),
    ("uv sync -f links", {"pyproject.toml": PROJECT}, "links/a-1.whl"),
    ("uv run --script a.py", {}, "a.py"),
    ("uv run pip install -r a.txt", {}, "a.txt"),
    ("uv run pip install -r a.txt", {"a.txt": "-r b.txt\n"}, "b.txt"),
    ("poetry install --no-root", {}, "poetry.lock"),
    ("poetry install --no-root", {}, "pyproject.toml"),
    ("poetry install --no-root", {}, "poetry.toml"),
    ("poetry install --no-root -C p", {}, "p/poetry.lock"),
    ("poetry install --no-root -P p", {}, "p/poetry.lock"),
    ("poetry install --no-root", {"../pyproject.toml": PROJECT}, "../poetry.lock"),
    ("poetry install --no-root", {"poetry.lock": POETRY % ("false", "directory", "pkg")}, "pkg/p"),
    ("poetry install", {"pyproject.toml": "package-mode = false"}, "poetry.lock"),
    ("conda env create", {}, "environment.yml"),
    ("conda env create -f e.yml", {}, "e.yml"),
    ("conda env create e.yaml", {}, "e.yaml"),
    ("conda env create -f d/e.yml", {"d/e.yml": ENVIRONMENT}, "d/pip.txt"),
    ("conda env create -f d/e.yml", {"d/e.yml": ENVIRONMENT}, "d/pkg/p.py"),
    ("conda create -n x --file a.txt", {}, "a.txt"),
    ("conda create --file a.txt", {"a.txt": "@EXPLICIT\nd/a.conda#012\n"}, "d/a.conda"),
    ("conda install ./a.conda", {}, "a.conda"),
    ("micromamba create -f conda-lock.yml", {}, "conda-lock.yml"),
    ("micromamba run -p /e pip install -r a.txt", {}, "a.txt"),
    ("conda-lock install", {}, "conda-lock.yml"),
    ("conda-lock install a-lock.yml", {}, "a-lock.yml"),
    ("bash in.sh", {"in.sh": "pip install -r a.txt\n"}, "in.sh"),
    ("bash in.sh", {"in.sh": "pip install -r a.txt\n"}, "a.txt"),
    ("./in.sh", {"in.sh": "#!/bin/sh\ncd d\npip install -r a.txt\n"}, "d/a.txt"),
    ("./tool", {}, "tool"),
    ("./tool a.cfg", {}, "a.cfg"),
    ("make -f a.mk x", {}, "a.mk"),
    ("make deps", {}, "Makefile"),
    ("make -C d deps", {}, "d/Makefile"),
    ("python3 setup.py install", {}, "src/p.py"),
    ("./setup.py install", {}, "src/p.py"),
    ("python3 d/setup.py bdist_wheel", {}, "d/src/p.py"),
    ("xargs -n 1 -a a.txt pip install", {}, "a.txt"),
    ("xargs --arg-file=a.txt pip install", {}, "a.txt"),
    ("xargs pip install -r a.txt", {}, "a.txt"),
    ("python3 build.py --with=a.cfg", {}, "a.cfg"),
]


@pytest.mark.parametrize(("command", "there", "file"), READ)
def test_what_a_command_reads_decides(place, command, there, file):
    for path, text in there.items():
        write(place, path, text)
    words = [word % (place / "w") if "%s" in word else word for word in command.split()]
    path = write(place, file, there.get(file, "x = 1\n"))
    before = parts(place, *words)
    path.write_bytes(path.read_bytes() + b"# other\n")
    after = parts(place, *words)
    assert len(compare(before, after)) == 1
    assert key_of(before) != key_of(after)
    path.unlink()
    assert key_of(parts(place, *words)) not in (key_of(before), key_of(after))


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("cd d && pip install -r a.txt", "d/a.txt"),
        ("X=a; pip install -r $X.txt", "a.txt"),
        ("pip install $(cat a.txt)", "a.txt"),
        ("PIP_CONSTRAINT=a.txt pip install b", "a.txt"),
        ("pip install d/*.whl", "d/a.whl"),
        ("export X=a; pip install -r variable.txt", "a.whl"),
        ("export UV_OVERRIDE=a.txt; uv pip install b", "a.txt"),
        ("xargs pip install < a.txt", "a.txt"),
        ("cat a.txt | xargs pip install", "a.txt"),
        ("cd d; while read -r l; do pip install $l; done <a.txt", "d/a.txt"),
    ],
)
def test_what_shell_text_reads_decides(place, text, file):
    assert f"file {file}" not in names(place, "sh", "-c", "true")
    write(place, "variable.txt", "./${X}.whl")
    write(place, file)
    assert f"file {file}" in names(place, "sh", "-c", text)


@pytest.mark.parametrize(
    ("variable", "value", "command", "name"),
    [
        ("PIP_REQUIREMENT", "a.txt b.txt", "pip install", "file b.txt"),
        ("PIP_CONSTRAINT", "a.txt", "pip install a", "file a.txt"),
        ("PIP_BUILD_CONSTRAINT", "a.txt", "pip install a", "file a.txt"),
        ("PIP_FIND_LINKS", "d", "pip install a", "distributions in d"),
        ("UV_CONSTRAINT", "a.txt b.txt", "uv pip install a", "file b.txt"),
        ("UV_BUILD_CONSTRAINT", "a.txt", "uv pip install a", "file a.txt"),
        ("UV_OVERRIDE", "a.txt", "uv pip install a", "file a.txt"),
        ("UV_FIND_LINKS", "e,d", "uv pip install a", "distributions in d"),
        ("UV_CONFIG_FILE", "a.toml", "uv pip install a", "settings a.toml"),
    ],
)
def test_files_that_variables_name_decide(place, monkeypatch, variable, value, command, name):
    monkeypatch.chdir(place / "w")
    for file in ("a.txt", "b.txt", "a.toml", "d/a.whl"):
        write(place, file)
    found = names(place, *command.split(), environ={variable: value})
    assert found & {name, f"setting {name}"}


REFUSED = [
    ("pip install -e .", {}, "editable"),
    ("pip install --editable=./pkg", {}, "editable"),
    ("pip install -e git+https://host/x", {}, "editable"),
    ("pip install -r a.txt", {"a.txt": "-e ./pkg\n"}, "a.txt: './pkg'.*editable"),
    ("uv pip install -e .", {}, "editable"),
    ("uv sync", {"pyproject.toml": BUILT}, "--no-editable"),
    ("uv sync", {"uv.lock": LOCKED % ("editable", ".")}, "--no-editable"),
    ("uv sync --no-install-project", {"uv.lock": LOCKED % ("editable", "a")}, "--no-editable"),
    ("uv sync", {"pyproject.toml": "[tool.uv.sources]\na = {workspace = true}\n"}, "editable"),
    ("poetry install", {"pyproject.toml": PROJECT}, "--no-root"),
    ("uv sync", {"pyproject.toml": PROJECT + "[tool.uv]\npackage = true\n"}, "--no-editable"),
    (
        "poetry install --no-root",
        {"poetry.lock": POETRY % ("true", "directory", "a")},
        "poetry.lock: 'a' .*editable",
    ),
    ("conda env create", {"environment.yml": "- pip:\n  - -e .\n"}, "editable"),
    ("pip install -r pylock.toml", {"pylock.toml": "directory = {editable = true}"}, "editable"),
    ("python3 d/setup.py develop", {}, "editable"),
    ("pip install -r https://u:secret@host/a.txt", {}, "https://host/a.txt: .*to a file"),
    ("pip install -r a.txt", {"a.txt": "-c https://host/c.txt\n"}, "to a file"),
    ("pip install -r -", {}, "to a file"),
    ("conda env create -f https://host/e.yml", {}, "to a file"),
    ("pip install git+file:///x", {}, "check it out"),
    ("pip install x@git+file:///x", {}, "check it out"),
    ("pip install -r /dev/null", {}, "not a regular file"),
    ("pip install -r a.txt", {"a.txt": '-r "b\n'}, "a.txt: .*correct this line"),
]


@pytest.mark.parametrize(("command", "there", "why"), REFUSED)
def test_what_no_key_can_tell_is_refused(place, command, there, why):
    for path, text in there.items():
        write(place, path, text)
    with pytest.raises(KeyProblem, match=why) as caught:
        parts(place, *command.split())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", ["--no-install-project", "--no-install-workspace"])
def test_a_project_that_is_left_out_is_no_pointer(place, option):
    write(place, "uv.lock", LOCKED % ("editable", "."))
    assert "file uv.lock" in names(place, "uv", "sync", option)


def test_a_pipe_does_not_hold_the_key_up(place):
    os.mkfifo(place / "w/a.txt")
    begun = time.monotonic()
    with pytest.raises(KeyProblem, match="not a regular file"):
        parts(place, "pip", "install", "-r", "a.txt")
    assert time.monotonic() - begun < 5


def test_a_file_that_changes_while_it_is_read_is_refused(place, monkeypatch):
    path = write(place, "a.txt")

    def read(fd, size):
        data = real_read(fd, size)
        path.write_bytes(b"something else\n")
        return data

    real_read = os.read
    with monkeypatch.context() as patched:
        patched.setattr(digest.os, "read", read)
        with pytest.raises(KeyProblem, match=r"a\.txt: changed while"):
            digest.file_digest(str(path))


def test_limits_are_kept(place, monkeypatch):
    write(place, "a.txt", "# 1\n" * 300)
    write(place, "pkg/a.py")
    for limit, value in (("MAX_TEXT_BYTES", 1000), ("MAX_TREE_FILES", 0), ("MAX_TREE_BYTES", 1)):
        with monkeypatch.context() as lowered:
            lowered.setattr(digest, limit, value)
            with pytest.raises(KeyProblem, match=r"larger than|too much"):
                parts(place, "pip", "install", "-r", "a.txt", "./pkg")
    monkeypatch.setattr("bootseer.env.client.inputs.requirement_files.MAX_FILES", 1)
    with pytest.raises(KeyProblem, match="lock file"):
        parts(place, "pip", "install", "-r", "a.txt", "./pkg")


def test_files_that_change_nothing_are_no_part(place):
    write(place, "a.txt")
    for command in ("pip install numpy", "pip install a.txt numpy", "uv pip install numpy"):
        assert not any(
            name.startswith(("file", "project")) for name in names(place, *command.split())
        )


@pytest.mark.parametrize(
    ("command", "there"),
    [
        ("make deps PYTHON=./python3.11", {"python3.11": ""}),
        ("cat d/setup.py", {"src/p.py": "x = 1\n"}),
        ("uv sync", {"pyproject.toml": "[tool.uv.sources]\na = {workspace = true}\n"}),
        ("uv sync", {"pyproject.toml": BUILT}),
        ("uv sync", {"pyproject.toml": BUILT + "[tool.uv]\npackage = false\n", "uv.lock": None}),
        ("poetry install --no-root", {"poetry.lock": POETRY % ("false", "git", "https://h/x")}),
        ("poetry show", {"pyproject.toml": PROJECT}),
    ],
)
def test_what_is_not_read_is_no_part(place, command, there):
    write(place, "uv.lock", "version = 1\n")
    for path, text in there.items():
        if text is None:
            (place / "w" / path).unlink()
        else:
            write(place, path, text)
    found = {name for name in names(place, *command.split()) if name.startswith(("file", "proj"))}
    assert found <= {
        *("file pyproject.toml", "file uv.lock"),
        *("file poetry.lock", "file d/setup.py"),
    }


def test_of_an_environment_only_what_pip_installs_can_be_a_file(place):
    lines = ("- ./no.whl", "- pip:", "  - ./a.whl", "", "  - ./b.whl", "- ./no.whl", "- ./no.whl")
    write(place, "environment.yml", "dependencies:\n" + "".join(f"  {line}\n" for line in lines))
    found = {name for name in names(place, "conda", "env", "create") if name.startswith("file")}
    assert found == {"file environment.yml", "file a.whl", "file b.whl"}


def test_a_program_that_is_a_script_is_a_part_without_its_credentials(place):
    keys = set()
    for word in ("secret", "hush"):
        write(place, "tool", f"#!/usr/bin/python3\nurl = 'https://me:{word}@host'\n")
        keys.add(key_of(parts(place, "./tool", "a.cfg")))
    assert len(keys) == 1


def test_a_copy_of_the_folder_has_the_same_key(place):
    write(place, "a.txt", "-r d/b.txt\n./pkg\n")
    write(place, "d/b.txt")
    write(place, "pkg/setup.py")
    before = key_of(parts(place, "pip", "install", "-r", "a.txt"))
    os.rename(place / "w", place / "elsewhere")
    shutil.copytree(place / "elsewhere", place / "w")
    assert key_of(parts(place, "pip", "install", "-r", "a.txt")) == before


def test_what_installing_leaves_in_a_project_is_no_part_of_it(place):
    write(place, "pyproject.toml", BUILT)
    write(place, "src/p.py")
    before = key_of(parts(place, "pip", "install", ".", targets={f"{place}/w/t": EMPTY}))
    for path in (
        *(".git/HEAD", "src/p.egg-info/PKG-INFO", "src/__pycache__/p.py", "build/lib/p.py"),
        *(
            "build/bdist.linux-x86_64/x",
            ".venv/pyvenv.cfg",
            ".venv/lib/a.py",
            "t/a.py",
            "src/q.pyc",
        ),
    ):
        write(place, path)
    assert key_of(parts(place, "pip", "install", ".", targets={f"{place}/w/t": EMPTY})) == before
    write(place, "build/own.py")
    assert key_of(parts(place, "pip", "install", ".", targets={f"{place}/w/t": EMPTY})) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda p: (p / "a").write_text("other"),
        lambda p: (p / "a").chmod(0o755),
        lambda p: (p / "a").rename(p / "b"),
        lambda p: ((p / "l").unlink(), (p / "l").symlink_to("b")),
        lambda p: (p / "new").touch(),
    ],
)
def test_what_a_project_holds_decides(tmp_path, change):
    (tmp_path / "a").write_text("a")
    (tmp_path / "a").chmod(0o644)
    (tmp_path / "l").symlink_to("a")
    before = tree_digest(str(tmp_path))
    os.utime(tmp_path / "a", ns=(0, 0))
    assert tree_digest(str(tmp_path)) == before
    change(tmp_path)
    assert tree_digest(str(tmp_path)) != before


WITH, OTHER, WITHOUT = (
    "https://me:secret@host/simple",
    "https://you:hush@host/simple",
    "https://host/simple",
)


@pytest.mark.parametrize(
    ("command", "environ", "file"),
    [
        ("pip install -i {} a", {}, None),
        ("pip install --extra-index-url={} a", {}, None),
        ("pip install git+{}", {}, None),
        ("pip install a", {"PIP_INDEX_URL": "{}"}, None),
        ("pip install a", {"PIP_EXTRA_INDEX_URL": "{} {}"}, None),
        ("uv pip install a", {"UV_INDEX": "name={}"}, None),
        ("conda install a", {"CONDA_CHANNELS": "{}"}, None),
        ("pip install -r a.txt", {}, "w/a.txt"),
        ("pip install a", {}, "home/.config/pip/pip.conf"),
        ("uv pip install a", {}, "home/.config/uv/uv.toml"),
        ("conda install a", {}, "home/.condarc"),
        ("bash a.sh", {}, "w/a.sh"),
    ],
)
def test_credentials_are_nowhere_and_change_nothing(place, command, environ, file):
    keys = set()
    for url in (WITH, OTHER, WITHOUT):
        if file:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            text = {"a.txt": f"-i {url}\n", ".condarc": f"channels:\n- {url}\n"}
            conf = f"[global]\nindex-url={url}\n"
            (place / file).write_text(text.get(os.path.basename(file), conf))
        values = {name: value.replace("{}", url) for name, value in environ.items()}
        found = parts(place, *command.replace("{}", url).split(), environ=values)
        assert not {"me", "secret", "hush"} & set(
            str(found).replace("/", ":").replace("@", ":").split(":")
        )
        keys.add(key_of(found))
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://u:p@h/x@y", "https://h/x@y"),
        ("https://u:p@p@h/", "https://h/"),
        ("-i https://token@h https://h/?a@b", "-i https://h https://h/?a@b"),
        ("${A}://${B}:${C}@h", "${A}://h"),
        ("https://h/t/xx-12345678-1234-1234/channel", "https://h/channel"),
        ("https://h/t/team/simple", "https://h/t/team/simple"),
        ('{"a":"https://h","b":"x@y"}', '{"a":"https://h","b":"x@y"}'),
        ("git@host:x", "git@host:x"),
    ],
)
def test_credentials_are_taken_out(text, clean):
    assert without_credentials(text) == clean
    assert text_digest(text.encode()) == text_digest(clean.encode())


@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(
            ("pip install a", f"PIP_{name}")
            for name in ("INDEX_URL", "NO_BINARY", "PRE", "NO_DEPS")
        ),
        *(("pip install a", f"PIP_{name}") for name in ("PLATFORM", "ABI", "NO_INDEX", "TARGET")),
        *(("uv sync", f"UV_{name}") for name in ("INDEX", "RESOLUTION", "EXCLUDE_NEWER", "FROZEN")),
        *(("conda install a", name) for name in ("CONDA_CHANNELS", "CONDA_OVERRIDE_CUDA")),
        ("poetry install --no-root", "POETRY_VIRTUALENVS_OPTIONS_NO_PIP"),
        *(("pip install a", name) for name in ("CC", "TORCH_CUDA_ARCH_LIST", "PYTHONPATH")),
        *(("make", name) for name in ("PIP_PRE", "UV_INDEX", "CONDA_CHANNELS", "CC")),
        *(
            ("pip install a", name)
            for name in (
                *("DS_BUILD_OPS", "FLASH_ATTENTION_FORCE_BUILD", "NVTE_FRAMEWORK", "APEX_CPP_EXT"),
                *("FORCE_CUDA", "USE_NINJA", "NO_CUDA", "BUILD_CUDA_EXT", "WITH_NCCL"),
                *("CMAKE_BUILD_TYPE", "SKBUILD_CMAKE_ARGS", "VLLM_TARGET_DEVICE", "CUDA_ARCHS"),
                *("TORCH_CUDA_ARCH_LIST", "MY_KERNELS_FORCE_BUILD", "SETUPTOOLS_SCM_PRETEND"),
                "ANY_LOCAL_VERSION",
            )
        ),
    ],
)
def test_variables_that_decide_are_parts(place, command, name):
    one, other = (parts(place, *command.split(), environ={name: value}) for value in "12")
    assert len(compare(one, other)) == 1
    assert compare(parts(place, *command.split(), environ={name: ""}), one)


@pytest.mark.parametrize(
    "name",
    [
        *("PIP_TRUSTED_HOST", "PIP_CACHE_DIR", "PIP_TIMEOUT", "UV_CACHE_DIR", "UV_HTTP_TIMEOUT"),
        *("MAMBA_EXE", "MAMBA_ROOT_PREFIX"),  # of another program than the package
        *("NO_COLOR", "no_proxy", "NO_PROXY", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "MAX_JOBS"),
        *("PYTORCH_CUDA_ALLOC_CONF", "TORCH_NCCL_BLOCKING_WAIT", "OMP_NUM_THREADS", "WITHIN"),
        *("UV_INDEX_NAME_PASSWORD", "CONDA_SHLVL", "SLURM_JOB_ID", "POETRY_HTTP_BASIC_X_PASSWORD"),
    ],
)
def test_variables_that_decide_nothing_are_none(place, name):
    for command in (["pip", "install", "a"], ["uv", "sync"], ["sh", "-c", "make"]):
        assert parts(place, *command, environ={name: "1"}) == parts(place, *command)


def test_variables_in_shell_text_and_requirements_are_digests(place):
    write(place, "a.txt", "${WHEELS}/a.whl\n-i https://${NAME}:${WORD}@host\n")
    environ = {"WHEELS": "d", "NAME": "n", "WORD": "w", "ARGS": "-r a.txt", "SLURM_JOB_ID": "1"}
    found = names(
        place, "sh", "-c", "pip install $ARGS # $SLURM_JOB_ID\n$SLURM_JOB_ID", environ=environ
    )
    assert {name for name in found if "variable" in name} == {"variable ARGS", "variable WHEELS"}
    assert "file d/a.whl" in found


def test_pip_s_files_override_each_other_in_pips_order(place):
    def setting(**environ):
        found = parts(place, "pip", "install", "a", environ=environ)
        return {part.name: part.value for part in found}.get("setting pip index-url")

    def conf(path, value, section="global"):
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(f"[{section}]\nindex_url = {value}\ntimeout = 1\n")

    order = ["root/etc/xdg/pip/pip.conf", "root/etc/pip.conf", "home/.pip/pip.conf"]
    assert setting() is None
    for at, path in enumerate([*order, "home/.config/pip/pip.conf"]):
        conf(path, f"https://{at}/")
        assert setting() == f"https://{at}/"
    conf("own.conf", "https://own/")
    with open(place / "home/.config/pip/pip.conf", "a") as file:
        file.write("pre = yes\n")
    own = {"PIP_CONFIG_FILE": f"{place}/own.conf"}
    assert "setting pip pre" in names(place, "pip", "install", "a")
    assert "setting pip pre" not in names(place, "pip", "install", "a", environ=own)
    assert setting(PIP_CONFIG_FILE=f"{place}/own.conf") == "https://own/"
    assert setting(PIP_CONFIG_FILE=os.devnull) is None
    conf("root/etc/pip.conf", "https://install/", section="install")
    assert setting() == "https://install/"
    assert setting(PIP_INDEX_URL="https://variable/") == "https://variable/"


def test_the_environments_own_pip_conf_counts(place, monkeypatch):
    (place / "env").mkdir()
    (place / "env/pip.conf").write_text("[global]\npre = yes\n")
    python = PYTHON._replace(prefix=f"{place}/env")
    monkeypatch.setattr(gather_module, "ask_python", lambda path, environ, distribution: python)
    assert "setting pip pre" in names(place, "pip", "install", "a")


def test_a_pip_conf_that_is_none_is_refused(place):
    (place / "root/etc").mkdir()
    (place / "root/etc/pip.conf").write_text("index-url\n")
    with pytest.raises(KeyProblem, match=r"pip\.conf"):
        parts(place, "pip", "install", "a")


def test_of_condarc_the_channels_count_and_not_the_rest(place):
    path = place / "home/.condarc"
    path.write_text("channels:\n  - a\nshow_channel_urls: true\nchannel_priority: strict\n")
    before = parts(place, "conda", "install", "x")
    assert f"setting conda channel_priority in {path}" in {part.name for part in before}
    path.write_text("# note\nchannels:\n- a\nchannel_priority: strict  # yes\nauto_update: no\n")
    assert parts(place, "conda", "install", "x") == before
    path.write_text("channels:\n- b\nchannel_priority: strict\n")
    assert [change.after for change in compare(before, parts(place, "conda", "install", "x"))] == [
        "- b"
    ]


FACTS = KeyFacts(("pip", "install", "a"), {"/t": EMPTY}, (PYTHON,), ("pip 23.0",), "x86_64", "none")


@pytest.mark.parametrize(
    "other",
    [
        {"command": ("pip", "install", "b")},
        {"command": ("pip", "install a")},
        {"targets": {"/u": EMPTY}},
        {"targets": {"/t": "sha256:12"}},
        {"targets": {"/t": EMPTY, "/u": EMPTY}},
        *({"pythons": (PYTHON._replace(**{f: "other"}),)} for f in PythonFacts._fields[:6]),
        {"pythons": (PYTHON, PYTHON._replace(version="3.12.1"))},
        {"installers": ("pip 24.0",)},
        {"platform": "aarch64"},
        {"accelerator": "NVIDIA driver 535"},
        {"files": {"file a": "sha256:1"}},
        {"settings": {"pip pre": "1"}},
        {"extra": ("x",)},
        {"extra": ("x", "y")},
        {"extra": ("y", "x")},
        {"image_digest": "sha256:1"},
    ],
    ids=str,
)
def test_every_fact_decides(other):
    changed = FACTS._replace(**other)
    assert key_of(parts_of(changed)) != key_of(parts_of(FACTS))
    assert key_of(parts_of(changed)) == key_of(parts_of(FACTS._replace(**other)))


def test_extras_are_in_order():
    assert key_of(parts_of(FACTS._replace(extra=("x", "y")))) != key_of(
        parts_of(FACTS._replace(extra=("y", "x")))
    )


def test_the_platform_is_the_targets_pythons(place):
    found = {part.name: part for part in parts(place, "pip", "install", "a")}
    assert found["platform"].value == "x86_64, glibc 2.36"
    assert found["python"].value == str(PYTHON)
    assert found["installer"].value == "pip 23.0"
    assert found["image"].value == "none"
    assert all(part.why for part in found.values())
    assert found["target /t"].why == "what is there before the command"
    in_image = parts(place, "pip", "install", "a", image_digest="sha256:1")
    assert KeyPart("image", "sha256:1", "the command runs in it") in in_image


def test_targets_are_absolute_and_normal(place):
    assert f"target {place}/w/t" in names(place, "make", targets={"x/../t/": EMPTY})


@pytest.mark.parametrize(
    ("text", "unbounded"),
    [
        ("make deps", ("make",)),
        ("cd x && cmake . && make -j8; make install", ("cmake", "make")),
        ("python3 setup.py install; pip install make; xargs pip install < a.txt", ()),
    ],
)
def test_programs_that_read_what_nothing_tells_are_named(place, text, unbounded):
    assert facts(place, "sh", "-c", text).unbounded == unbounded


def test_files_that_the_user_names_decide(place):
    write(place, "a.cfg")
    assert "file a.cfg" in names(place, "make", key_files=["a.cfg"])
    with pytest.raises(KeyProblem, match="no such file"):
        parts(place, "make", key_files=["b.cfg"])


def test_every_python_that_is_used_is_asked(place, monkeypatch):
    for name in ("python3.9", "python3.11"):
        shutil.copy(place / "bin/python3", place / "bin" / name)
    monkeypatch.setattr(
        gather_module,
        "ask_python",
        lambda path, environ, distribution: PYTHON._replace(version=os.path.basename(path)),
    )
    text = "mkdir -p x; python3.9 -m venv x; python3.11 -m pip install a"
    found = {p.name: p.value for p in parts(place, "sh", "-c", text)}
    assert "python3.9" in found["python"] and "python3.11" in found["python 2"]
    assert "python 3" not in found
    monkeypatch.setattr(gather_module, "MAX_PYTHONS", 1)
    with pytest.raises(KeyProblem, match="split it"):
        parts(place, "sh", "-c", text)


def test_a_real_python_is_asked_in_the_end(tmp_path):
    found = gather(
        ["python3", "-m", "pip", "install", "a"], {}, environ=os.environ, cwd=str(tmp_path)
    )
    assert found.pythons and found.installers[0].startswith("pip ")
    assert found == gather(
        ["python3", "-m", "pip", "install", "a"],
        {},
        environ=dict(sorted(os.environ.items(), reverse=True)),
        cwd=str(tmp_path),
    )


def test_too_many_parts_are_refused():
    others = len(parts_of(FACTS))
    most = parts_of(FACTS._replace(extra=("x",) * (2000 - others)))
    assert from_document(to_document(most), "d") == most
    with pytest.raises(KeyProblem, match="split the command"):
        parts_of(FACTS._replace(extra=("x",) * (2001 - others)))


TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=5)
PARTS = st.dictionaries(TEXT, TEXT, max_size=5).map(
    lambda d: [KeyPart(*item) for item in d.items()]
)


@given(PARTS, PARTS)
def test_encodings_are_equal_where_parts_are(one, other):
    assert (encode(one) == encode(other)) == (sorted(one) == sorted(other))
    assert key_of(one[::-1]) == key_of(one)


@given(st.dictionaries(TEXT, st.text(max_size=5)), st.lists(st.text(max_size=5), max_size=3))
def test_the_order_of_settings_and_targets_does_not_count(values, extra):
    values = {name: json.dumps(value) for name, value in values.items()}
    one = FACTS._replace(settings=values, targets=values, files=values, extra=tuple(extra))
    backwards = dict(reversed(list(values.items())))
    other = one._replace(settings=backwards, targets=backwards, files=backwards)
    assert parts_of(one) == parts_of(other)


@given(st.lists(st.text(max_size=5), max_size=3), st.lists(st.text(max_size=5), max_size=3))
def test_different_commands_differ(one, other):
    keys = [key_of(parts_of(FACTS._replace(command=tuple(words)))) for words in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


@given(st.lists(st.text(max_size=20), max_size=4), st.dictionaries(st.text(max_size=8), st.text()))
def test_documents_are_read_as_they_were_written(extra, targets):
    written = parts_of(FACTS._replace(extra=tuple(extra), targets=targets))
    document = json.loads(json.dumps(to_document(written)))
    assert from_document(document, "d") == written
    assert document["key"] == key_of(written)


def test_texts_that_are_too_long_are_cut_and_still_differ():
    [whole] = (
        part.value
        for part in parts_of(FACTS._replace(settings={"a": "x" * 8192}))
        if part.name == "setting a"
    )
    assert whole == "x" * 8192
    long = [FACTS._replace(command=("x" * 20_000 + end,)) for end in "ab"]
    one, other = (parts_of(each) for each in long)
    assert key_of(one) != key_of(other)
    assert from_document(to_document(one), "d") == one


def test_a_key_stays_what_it_is():
    """Other versions of Python, and of this program, must not make another of the same parts."""
    assert encode([KeyPart("b", "2"), KeyPart("a", "1", "why")]) == b"".join(
        len(field).to_bytes(8, "little") + field
        for field in (b"bootseer environment key 1", b"2", b"a", b"1", b"b", b"2")
    )
    assert key_of([]) == "f509f40b684008f624a399da0271e2e93217d0301f6740958a49f1d3a8fb081e"


def damaged():
    good = to_document(parts_of(FACTS))
    first = good["parts"][0]
    yield []
    yield None
    yield {**good, "format": "other"}
    yield {**good, "version": True}
    yield {**good, "key": "0" * 64}
    yield {**good, "key": None}
    yield {**good, "key": good["key"].upper()}
    yield {**good, "parts": {}}
    yield {**good, "parts": [first] * 2001}
    yield {**good, "parts": [*good["parts"], first]}
    yield {**good, "parts": good["parts"][1:]}
    yield to_document([KeyPart("a", "1"), KeyPart("a", "2")])
    for part in (None, [], {}, {**first, "value": 1}, {**first, "name": "a\nb"}):
        yield {**good, "parts": [part]}
    yield {**good, "parts": [{**first, "value": "é"}]}
    yield {**good, "parts": [{**first, "value": "x" * 8193}]}
    yield {**good, "parts": [{**first, "name": "x" * 1025}]}


@pytest.mark.parametrize("document", list(damaged()))
def test_damaged_documents_are_refused(document):
    with pytest.raises(Corrupt, match="d: "):
        from_document(document, "d")


LONGEST = KeyPart("a" * 1024, "x" * 8192, "w" * 1024)


@pytest.mark.parametrize(
    "part",
    [
        LONGEST._replace(name="a" * 1025),
        LONGEST._replace(value="x" * 8193),
        LONGEST._replace(why="w" * 1025),
        KeyPart("a\nb", "1"),
        KeyPart("a", "\u00e9"),
    ],
)
def test_parts_that_are_not_acceptable_are_refused_though_the_key_is_theirs(part):
    assert from_document(to_document([LONGEST]), "d") == (LONGEST,)
    with pytest.raises(Corrupt, match="of a part is missing or not acceptable"):
        from_document(to_document([part]), "d")


def test_parts_that_are_no_list_are_refused_though_the_key_is_theirs():
    with pytest.raises(Corrupt, match="'parts'"):
        from_document({**to_document([]), "parts": {}}, "d")


def test_documents_of_another_version_are_told_apart():
    with pytest.raises(UnknownVersion):
        from_document({**to_document(parts_of(FACTS)), "version": 2}, "d")


def test_what_changed_is_told_by_name():
    before, after = (
        [KeyPart("a", "1"), KeyPart("b", "1"), KeyPart("c", "1")],
        [KeyPart("b", "1"), KeyPart("c", "2")],
    )
    after.append(KeyPart("d", "1"))
    assert compare(before, after) == [
        KeyChange("a", "1", ""),
        KeyChange("c", "1", "2"),
        KeyChange("d", "", "1"),
    ]
    assert compare(before, [part._replace(why="w") for part in before]) == []
