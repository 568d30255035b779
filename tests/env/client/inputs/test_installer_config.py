"""Settings of installers: which variables and files count, and which of several files wins."""

import os

import pytest

from bootseer.env.client.inputs.installer_config import settings

INDEX = "pip index-url"


@pytest.fixture
def place(tmp_path):
    """A home, and the root of a machine."""
    for folder in ("home", "root"):
        (tmp_path / folder).mkdir()
    return tmp_path


def write(place, path, text):
    path = place / path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def found(place, tool, *, prefixes=(), **environ):
    environ = {"HOME": f"{place}/home", **environ}
    return settings([tool], environ, prefixes=prefixes, root=f"{place}/root")


def test_sections_for_other_commands_do_not_count(place):
    write(
        place,
        "home/.pip/pip.conf",
        "[freeze]\nindex-url = a\n[variables]\nindex-url = b\n[global]\nindex-url = c\npre =\n",
    )
    assert found(place, "pip").parts == {INDEX: "c"}


def test_only_variables_of_pip_with_a_value_are_pips(place):
    assert found(place, "pip", XXX_PRE="1", PIP_PRE="").parts == {}


def test_pip_reads_the_folders_of_the_system_in_their_order(place):
    write(place, "root/etc/xdg/pip/pip.conf", "[global]\nindex-url = default\npre = yes\n")
    for folder in "ab":
        write(place, f"{folder}/pip/pip.conf", f"[global]\nindex-url = {folder}\n")
    several = f"{place}/a{os.pathsep}{place}/b"
    assert found(place, "pip", XDG_CONFIG_DIRS=several).parts == {INDEX: "b"}


def test_a_file_of_pip_that_is_named_and_not_there_replaces_none(place):
    write(place, "home/.config/pip/pip.conf", "[global]\nindex-url = home\n")
    assert found(place, "pip", PIP_CONFIG_FILE=f"{place}/none").parts == {INDEX: "home"}


@pytest.mark.parametrize("tool", ["pip", "uv", "conda", "poetry"])
def test_the_folder_of_a_users_settings_can_be_another(place, tool):
    write(place, "config/pip/pip.conf", "[global]\nindex-url = x\n")
    write(place, "config/uv/uv.toml", "x = 1\n")
    write(place, "config/conda/condarc", "channels: x\n")
    write(place, "config/pypoetry/config.toml", "x = 1\n")
    [name] = found(place, tool, XDG_CONFIG_HOME=f"{place}/config").parts
    assert name == INDEX or f"{place}/config/" in name


@pytest.mark.parametrize(
    ("path", "environ"),
    [
        ("root/etc/xdg/uv/uv.toml", {}),
        ("own/uv/uv.toml", {"XDG_CONFIG_DIRS": "/none:{}/own"}),
        ("root/etc/uv/uv.toml", {}),
        ("home/.config/uv/uv.toml", {}),
        ("named.toml", {"UV_CONFIG_FILE": "{}/named.toml"}),
    ],
)
def test_uv_reads_settings_of_the_system_and_of_its_user(place, path, environ):
    path = write(place, path, "x = 1\n")
    environ = {name: value.format(place) for name, value in environ.items()}
    assert f"settings {path}" in found(place, "uv", **environ).parts
    assert "UV_NO_CONFIG" in found(place, "uv", UV_NO_CONFIG="1", **environ).parts
    assert f"settings {path}" not in found(place, "uv", UV_NO_CONFIG="1", **environ).parts


@pytest.mark.parametrize(
    ("path", "environ"),
    [
        ("root/etc/conda/condarc", {}),
        ("root/var/lib/conda/.condarc", {}),
        ("prefix/.mambarc", {}),
        ("conda/condarc", {"CONDA_ROOT": "{}/conda"}),
        ("mamba/.condarc", {"MAMBA_ROOT_PREFIX": "{}/mamba"}),
        ("home/.config/conda/.condarc", {}),
        ("home/.conda/condarc", {}),
        ("home/.mambarc", {}),
        ("active/.condarc", {"CONDA_PREFIX": "{}/active"}),
        ("named", {"CONDARC": "{}/named"}),
        ("named", {"MAMBARC": "{}/named"}),
    ],
)
def test_conda_reads_settings_from_many_places(place, path, environ):
    path = write(place, path, "channels:\n- a\n- b # c\n")
    environ = {name: value.format(place) for name, value in environ.items()}
    parts = found(place, "conda", prefixes=[f"{place}/prefix"], **environ).parts
    assert parts.items() - environ.items() == {(f"conda channels in {path}", "- a - b")}


def test_a_folder_with_the_name_of_condas_settings_is_none(place):
    (place / "home/.condarc").mkdir()
    assert found(place, "conda").parts == {}
