"""Settings of installers that decide what they install: variables and configuration files.

Options on the command line are part of the command. Credentials are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from bootseer.env.client.inputs.digest import (
    KeyProblem,
    printable,
    read_text,
    text_digest,
    without_credentials,
)

_PIP_WORDS = """
index-url extra-index-url find-links no-index no-binary only-binary prefer-binary pre all-releases
only-final no-deps no-dependencies platform python-version implementation abi constraint
build-constraint requirement requirements-from-script editable group config-settings
config-setting global-option no-build-isolation no-use-pep517 use-pep517 require-hashes upgrade
upgrade-strategy force-reinstall ignore-installed ignore-requires-python uploaded-prior-to
use-feature use-deprecated target prefix root user compile no-compile python src
"""
_UV_WORDS = """
INDEX DEFAULT_INDEX INDEX_URL EXTRA_INDEX_URL FIND_LINKS NO_INDEX INDEX_STRATEGY RESOLUTION
PRERELEASE FORK_STRATEGY CONSTRAINT BUILD_CONSTRAINT OVERRIDE EXCLUDE EXCLUDE_NEWER NO_BINARY
NO_BINARY_PACKAGE NO_BUILD NO_BUILD_PACKAGE NO_BUILD_ISOLATION NO_SOURCES NO_SOURCES_PACKAGE
CONFIG_SETTINGS PYTHON PYTHON_PREFERENCE PYTHON_DOWNLOADS MANAGED_PYTHON NO_MANAGED_PYTHON
PYTHON_INSTALL_DIR TORCH_BACKEND FROZEN LOCKED DEV NO_DEV GROUP NO_GROUP NO_DEFAULT_GROUPS EXTRA
NO_EDITABLE NO_INSTALL_PROJECT LINK_MODE COMPILE_BYTECODE PROJECT PROJECT_ENVIRONMENT WORKING_DIR
SYSTEM_PYTHON NO_CONFIG CONFIG_FILE REQUIRE_HASHES NO_VERIFY_HASHES VENV_SEED VENV_RELOCATABLE
"""
_CONDA_WORDS = """
channels default_channels custom_channels custom_multichannels migrated_custom_channels
channel_alias migrated_channel_aliases channel_priority allowlist_channels whitelist_channels
denylist_channels override_channels_enabled allow_other_channels add_anaconda_token
pinned_packages disallowed_packages disallow create_default_packages track_features subdir subdirs
solver experimental_solver use_only_tar_bz2 repodata_fns restore_free_channel
add_pip_as_python_dependency pip_interop_enabled update_modifier deps_modifier always_softlink
always_copy allow_softlinks root_prefix platform
"""
_POETRY = re.compile(r"POETRY_(VIRTUALENVS|INSTALLER|SOLVER)_\w+", re.ASCII)
_BUILD_WORDS = """
CC CXX FC F77 F90 LD AR NVCC HIPCC CFLAGS CXXFLAGS CPPFLAGS FFLAGS FCFLAGS LDFLAGS CUDACXX
CUDAHOSTCXX CUDA_HOME CUDA_PATH CUDA_ROOT CUDNN_HOME ROCM_HOME ROCM_PATH HIP_PATH MPICC MPICXX
MPI_HOME MKLROOT BLAS LAPACK OPENBLAS ATLAS HDF5_DIR RUSTFLAGS RUSTC RUSTUP_TOOLCHAIN ARCHFLAGS
PKG_CONFIG_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH PYTHONPATH PYTHONHOME
PYTHONUSERBASE PYTHONNOUSERSITE SOURCE_DATE_EPOCH
"""
"""What compilers and build tools heed when a package has no wheel."""
_BUILD_RULE = re.compile(
    r"""
    # What the builds of packages ask for themselves.
    (?:APEX|BNB|CAUSAL_CONV1D|CUPY|DEEP_EP|DEEPGEMM|DGL|DS|FLASH_ATTENTION|FLASH_ATTN|FLASH_MLA
      |FLASHINFER|GRPC_PYTHON|HOROVOD|LIGHTGBM|LLAMA|MAMBA|MEGABLOCKS|NATTEN|NPY|NVTE|SAGE_ATTN
      |SGL_KERNEL|TRITON_BUILD|VLLM|XFORMERS|XGBOOST)_\w+
    # Of build tools.
    |(?:CARGO_BUILD|CARGO_TARGET|CMAKE|CYTHON|DISTUTILS|HATCH|MATURIN|MESON|NVCC|PBR|PDM_BUILD
      |PYBIND11|PYO3|SCIKIT_BUILD|SETUPTOOLS|SKBUILD)_\w+
    # Names that authors of a setup.py use.
    |(?:BUILD|DISABLE|ENABLE|FORCE|NO|SKIP|USE|WITH|WITHOUT)_[A-Z]\w*
    |\w+_(?:ARCHS?|ARCH_LIST|BUILD|BUILD_FLAGS|BUILD_OPTIONS|BUILD_TYPE|BUILD_VERSION|CXX11_ABI
      |FORCE_BUILD|LOCAL_VERSION|TARGET_DEVICE|USE_PRECOMPILED|VERSION_OVERRIDE|WHEEL_URL)
    """,
    re.ASCII | re.VERBOSE,
)
_NOT_BUILD = re.compile(
    r"NO_COLOR|NO_PROXY|FORCE_COLOR|(DISABLE|NO)_TELEMETRY|VLLM_(HOST|PORT)\w*"
    r"|MAMBA_(EXE|NO_BANNER|ROOT_PREFIX)"  # of the program, not of the package
)
"""Of those, the ones that say nothing of the result."""

_PIP = frozenset(_PIP_WORDS.split())
_UV = frozenset(_UV_WORDS.split())
_CONDA = frozenset(_CONDA_WORDS.split())
_BUILD = frozenset(_BUILD_WORDS.split())


class InstallerConfig(NamedTuple):
    """Settings, and the files that they name.

    Attributes:
        parts: names and values for the key, without credentials.
        requirements: requirement and constraint files that settings name.
        links: folders and pages of distributions.
        editables: projects to be installed as editable.
    """

    parts: dict[str, str]
    requirements: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    editables: tuple[str, ...] = ()


def settings(
    tools: Collection[str],
    environ: Mapping[str, str],
    *,
    prefixes: Sequence[str] = (),
    config_files: Sequence[str] = (),
    verb: str = "install",
    root: str = "/",
) -> InstallerConfig:
    """Gather the settings of some installers.

    Args:
        tools: "pip", "uv", "conda", "poetry".
        environ: their environment.
        prefixes: prefixes of the Pythons that they use.
        config_files: files that the command line names.
        verb: pip's command; its configuration has sections of that name.
        root: folder with the machine's own files.

    Raises:
        KeyProblem: a configuration file cannot be read.
    """
    parts = {name: value for name, value in environ.items() if value and _is_build(name)}
    pip: dict[str, str] = {}
    if "pip" in tools:
        pip = _pip(environ, prefixes, verb, root)
        parts.update((f"pip {name}", value) for name, value in pip.items())
    if "uv" in tools:
        parts.update(_variables(environ, "UV_", _UV))
        parts.update(_digests(_uv_files(environ, config_files, root)))
    if "conda" in tools:
        parts.update((n, v) for n, v in environ.items() if n.startswith("CONDA_OVERRIDE_"))
        parts.update(_variables(environ, "CONDA_", {name.upper() for name in _CONDA}))
        for path in _conda_files(environ, prefixes, root):
            for name, value in _top_level(path).items():
                parts[f"conda {name} in {printable(path)}"] = value
    if "poetry" in tools:
        parts.update((name, value) for name, value in environ.items() if _POETRY.fullmatch(name))
        parts.update(_digests([os.path.join(_config_home(environ), "pypoetry/config.toml")]))
    uv = environ if "uv" in tools else {}
    in_uv = ("UV_CONSTRAINT", "UV_BUILD_CONSTRAINT", "UV_OVERRIDE", "UV_EXCLUDE")
    in_pip = ("constraint", "build-constraint", "requirement", "requirements-from-script")
    return InstallerConfig(
        {name: _shown(value) for name, value in parts.items()},
        requirements=tuple(
            name
            for names in [*(pip.get(n, "") for n in in_pip), *(uv.get(n, "") for n in in_uv)]
            for name in names.split()
        ),
        links=(*pip.get("find-links", "").split(), *_commas(uv.get("UV_FIND_LINKS", ""))),
        editables=tuple(pip.get("editable", "").split()),
    )


def _is_build(name: str) -> bool:
    if name in _BUILD:
        return True
    return bool(_BUILD_RULE.fullmatch(name)) and not _NOT_BUILD.fullmatch(name)


def _pip(
    environ: Mapping[str, str], prefixes: Sequence[str], verb: str, root: str
) -> dict[str, str]:
    """Return pip's settings, without those of the command line."""
    found: dict[str, dict[str, str]] = {"global": {}, verb: {}, "variables": {}}
    for path in _pip_files(environ, prefixes, root):
        data = read_text(path)
        if data is None:
            continue
        import configparser  # rarely needed

        parser = configparser.RawConfigParser()
        try:
            parser.read_string(data.decode("utf-8-sig", "surrogateescape"), path)
        except configparser.Error as error:
            raise KeyProblem(f"{path}: {error}; correct this file") from error
        for section in parser.sections():
            if section in found and section != "variables":
                found[section].update(
                    (name.lower().replace("_", "-"), value)
                    for name, value in parser.items(section)
                    if value
                )
    for name, value in environ.items():
        if name.startswith("PIP_") and value:
            found["variables"][name[len("PIP_") :].lower().replace("_", "-")] = value
    whole: dict[str, str] = {}
    for section in ("global", verb, "variables"):
        whole.update(found[section])
    return {name: value for name, value in whole.items() if name in _PIP}


def _pip_files(environ: Mapping[str, str], prefixes: Sequence[str], root: str) -> Iterator[str]:
    """List the files that pip reads, those with the lowest precedence first."""
    named = environ.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return
    for folder in environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep):
        yield os.path.join(folder or os.path.join(root, "etc/xdg"), "pip/pip.conf")
    yield os.path.join(root, "etc/pip.conf")
    if not (named and os.path.exists(named)):
        yield os.path.join(_home(environ), ".pip/pip.conf")
        yield os.path.join(_config_home(environ), "pip/pip.conf")
    for prefix in prefixes:
        yield os.path.join(prefix, "pip.conf")
    if named:
        yield named


def _uv_files(environ: Mapping[str, str], config_files: Sequence[str], root: str) -> Sequence[str]:
    """List uv's settings outside of projects."""
    if environ.get("UV_NO_CONFIG"):
        return ()
    named = filter(None, [environ.get("UV_CONFIG_FILE", "")])
    folders = environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep)
    system = [os.path.join(f or os.path.join(root, "etc/xdg"), "uv/uv.toml") for f in folders]
    user = os.path.join(_config_home(environ), "uv/uv.toml")
    return (*named, *config_files, *system, os.path.join(root, "etc/uv/uv.toml"), user)


def _conda_files(environ: Mapping[str, str], prefixes: Sequence[str], root: str) -> Iterator[str]:
    """List the files that conda and mamba read, each once."""
    home = _home(environ)
    folders = [os.path.join(root, "etc/conda"), os.path.join(root, "var/lib/conda")]
    folders += [*prefixes, environ.get("CONDA_ROOT", ""), environ.get("MAMBA_ROOT_PREFIX", "")]
    folders += [os.path.join(_config_home(environ), "conda"), os.path.join(home, ".conda")]
    folders += [home, environ.get("CONDA_PREFIX", "")]
    named = [environ.get("CONDARC", ""), environ.get("MAMBARC", "")]
    names = ("condarc", ".condarc", ".mambarc")
    paths = [os.path.join(folder, name) for folder in folders if folder for name in names]
    for path in dict.fromkeys((*paths, *named)):
        if os.path.isfile(path):
            yield path


def _top_level(path: str) -> dict[str, str]:
    """Return those settings of a condarc that matter, each with all lines below it."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (read_text(path) or b"").decode("utf-8", "surrogateescape").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).rstrip()
        begun = re.match(r"([A-Za-z_]+)\s*:(.*)", line)
        if begun:
            name = begun[1]
            line = begun[2]
        if name in _CONDA and line.strip():
            found.setdefault(name, []).append(line.strip())
    return {name: " ".join(lines) for name, lines in found.items()}


def _digests(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Digest files in formats that not every Python can parse."""
    for path in dict.fromkeys(paths):
        data = read_text(path)
        if data is not None:
            yield f"settings {printable(path)}", str(text_digest(data))


def _variables(
    environ: Mapping[str, str], prefix: str, names: Collection[str]
) -> Iterator[tuple[str, str]]:
    for name, value in environ.items():
        if name.startswith(prefix) and name[len(prefix) :] in names and value:
            yield name, value


def _shown(value: str) -> str:
    return printable(without_credentials(" ".join(value.split())))


def _commas(value: str) -> list[str]:
    return [name.strip() for name in value.split(",") if name.strip()]


def _home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _config_home(environ: Mapping[str, str]) -> str:
    return environ.get("XDG_CONFIG_HOME") or os.path.join(_home(environ), ".config")
