"""The options of a job as they arrive on the node: checked again, because root acts on them.

The plugin has checked them at submit, but a user who submits without it, or with variables of their
own, gets here as well. The grammar is that of spank/options.c, and a test holds the two equal.

Imported by the hook path: the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from bootseer.core.reference import ENVIRONMENT, reference
from bootseer.errors import ConfigError

MAX_WAIT_S = 3600
MAX_PATH_BYTES = 4095
MAX_KEY_BYTES = 128

_KEY = re.compile(r"[A-Za-z0-9_@+][A-Za-z0-9._@+-]{0,127}", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]{0,15}://.+", re.ASCII | re.DOTALL)
_SECRET = re.compile(r"[0-9a-f]{64}", re.ASCII)
_WAIT = re.compile(r"[0-9]{1,4}", re.ASCII)

READ_ONLY = ":ro"
"""At the end of --bootseer-ckpt; no name in HDFS has a colon."""

PREFIX = "SPANK_BOOTSEER_"
PYXIS = "SPANK__SLURM_SPANK_OPTION_pyxis_container_image"


class JobOptions(NamedTuple):
    """What a job asked for.

    Attributes:
        key: "" for the default, the user's job name.
        record_only: warm nothing, record as if for the first time.
        image: absolute path or URI of the image, "" when none was named.
        environment: name of the environment, or absolute path of a file that says which, "" for
            none.
        imported: what Pyxis is going to ask its importer for, "" for nothing.
        checkpoint: URI of the checkpoint folder, "" when none was named.
        mountpoint: absolute path where the job wants to see it, "" where it is put.
        read_only: the job may not change it.
        wait_s: None when none was given.
        secret: made at submission for the nodes of the job alone, "" for none.
        ignored: one line for each value that was not acceptable and is left out.
    """

    key: str = ""
    record_only: bool = False
    image: str = ""
    environment: str = ""
    imported: str = ""
    checkpoint: str = ""
    mountpoint: str = ""
    read_only: bool = False
    wait_s: int | None = None
    secret: str = ""
    ignored: tuple[str, ...] = ()


def is_key(value: str) -> bool:
    """Whether ``value`` can name a warm plan."""
    return _KEY.fullmatch(value) is not None


def is_path(value: str) -> bool:
    """Whether ``value`` is an absolute path without parent components and control characters."""
    return value.startswith("/") and ".." not in value.split("/") and _is_plain(value)


def is_uri(value: str) -> bool:
    """Whether ``value`` is ``scheme://rest``."""
    return _URI.fullmatch(value) is not None and _is_plain(value)


def is_image(value: str) -> bool:
    """Whether ``value`` can name an image: an absolute path or a URI."""
    return is_path(value) or is_uri(value)


def is_env(value: str) -> bool:
    """Whether ``value`` can name an environment: as a key, or as an absolute path."""
    return is_key(value) or is_path(value)


def to_be_imported(container: str) -> str:
    """Return the image that Pyxis asks its importer for, "" where it does not."""
    if container[:1] in ("", ".", "/"):
        return ""  # a path
    has_scheme = container.startswith(("docker://", "dockerd://"))
    uri = container if has_scheme else f"docker://{container}"
    return reference(uri) if is_uri(uri) else ""


def is_ckpt(value: str) -> bool:
    """Whether ``value`` is ``URI[:MOUNTPOINT][:ro]``; `split_ckpt` takes it apart."""
    if not is_uri(value):
        return False
    uri, found, mount_point = value.rpartition(":/")
    if not found or mount_point.startswith("/"):
        return True  # the last ":/" is the one of "://"
    return is_uri(uri) and is_path("/" + mount_point)


def split_ckpt(value: str) -> tuple[str, str, bool]:
    """Take ``URI[:MOUNTPOINT][:ro]`` apart: URI, mount point or "", whether it ends in ``:ro``."""
    plain = value.removesuffix(READ_ONLY)
    uri, found, mount_point = plain.rpartition(":/")
    if not found or mount_point.startswith("/"):
        return plain, "", plain != value
    return uri, "/" + mount_point, plain != value


def join_ckpt(asked: JobOptions) -> str:
    """Return what `split_ckpt` has taken apart."""
    mountpoint = f":{asked.mountpoint}" if asked.mountpoint else ""
    return f"{asked.checkpoint}{mountpoint}{READ_ONLY if asked.read_only else ''}"


def is_wait(value: str) -> bool:
    """Whether ``value`` is a whole number of seconds that may be asked for."""
    return _WAIT.fullmatch(value) is not None and int(value) <= MAX_WAIT_S


def parse(environ: Mapping[str, str]) -> JobOptions | None:
    """Read a job's options from a hook's environment; None when it did not ask for BootSeer.

    A value that is not acceptable is left out and named under ``ignored``; only a key that is not
    acceptable means that nothing is done.

    Raises:
        ConfigError: the key is not acceptable.
    """
    key = environ.get(PREFIX + "KEY")
    if key is None or key == "off":
        return None
    record_only = key == "record"
    if key and not is_key(key):
        raise ConfigError(
            f"--bootseer: {_show(key)} is not a valid key; BootSeer is disabled for this job"
        )
    ignored = []
    image = environ.get(PREFIX + "IMAGE", "")
    if image and (not is_image(image) or image.startswith(ENVIRONMENT)):
        ignored.append(f"--bootseer-image: {_show(image)} is neither an absolute path nor a URI")
        image = ""
    imported = ""
    if not image:
        container = environ.get(PYXIS, "")
        image = container if is_path(container) else ""
        imported = to_be_imported(container)
    wait = environ.get(PREFIX + "WAIT", "")
    if wait and not is_wait(wait):
        ignored.append(f"--bootseer-wait: {_show(wait)} is not a number of seconds")
        wait = ""
    ckpt = environ.get(PREFIX + "CKPT", "")
    if ckpt and not is_ckpt(ckpt):
        ignored.append(f"--bootseer-ckpt: {_show(ckpt)} is not URI[:MOUNTPOINT]")
        ckpt = ""
    checkpoint, mountpoint, read_only = split_ckpt(ckpt)
    environment = environ.get(PREFIX + "ENV", "")
    if environment and not is_env(environment):
        ignored.append(f"--bootseer-env: {_show(environment)} is neither a name nor a path")
        environment = ""
    secret = environ.get(PREFIX + "SECRET", "")
    return JobOptions(
        key="" if record_only else key,
        record_only=record_only,
        image=image,
        environment=environment,
        imported=imported,
        checkpoint=checkpoint,
        mountpoint=mountpoint,
        read_only=read_only,
        wait_s=int(wait) if wait else None,
        secret=secret if _SECRET.fullmatch(secret) else "",
        ignored=tuple(ignored),
    )


def key_of_name(job_name: str) -> str:
    """Turn a job's name into a key: what a key cannot hold becomes an underscore."""
    key = re.sub(r"[^A-Za-z0-9._@+-]", "_", job_name)[:MAX_KEY_BYTES]
    if key[:1] in (".", "-"):
        key = "_" + key[1:]
    return key or "unnamed"


def _is_plain(value: str) -> bool:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:  # surrogates: the bytes were not UTF-8
        return False
    return size <= MAX_PATH_BYTES and not any(c < " " or c == "\x7f" for c in value)


def _show(value: str) -> str:
    return ascii(value[:80])
