"""What HDFS's errors mean for an object in a store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from bootseer.errors import (
    BootseerError,
    ConfigError,
    Conflict,
    Denied,
    NotFound,
    OverQuota,
    Transient,
    Unavailable,
)

# What hdfs-native makes of an exception of the NameNode's that it has no Python error for.
_RPC = re.compile(r'RPCError\("([\w.$]+)", "(.*)"\)', re.DOTALL)
_STACK = re.compile(r"(?:\\n|\n)\s*(?:\\t|\t)?at .*", re.DOTALL)

_CLASSES: dict[str, tuple[type[BootseerError], str]] = {
    "AccessControlException": (Denied, ""),
    "ParentNotDirectoryException": (Conflict, "a folder above it is an object"),
    "PathIsNotEmptyDirectoryException": (Conflict, "the folder is not empty"),
    "FileAlreadyExistsException": (Conflict, ""),
    "AlreadyBeingCreatedException": (Conflict, "somebody else is writing it"),
    "InvalidPathException": (ConfigError, "HDFS does not allow this name"),
    "FSLimitException$PathComponentTooLongException": (ConfigError, "the name is too long"),
    "FSLimitException$MaxDirectoryItemsExceededException": (Unavailable, "the folder is full"),
    "NSQuotaExceededException": (OverQuota, "the quota of names is used up; have it raised"),
    "DSQuotaExceededException": (OverQuota, "the quota of space is used up; have it raised"),
    "SafeModeException": (Transient, "the NameNode is in safe mode"),
    "StandbyException": (Transient, "the NameNode is on standby"),
    "RetriableException": (Transient, "the NameNode asks to try again"),
    "LeaseExpiredException": (Transient, "the file being written was removed or taken over"),
    "RecoveryInProgressException": (Transient, "an earlier writer is being recovered from"),
}
_TEXT_LENGTH = 300


def translate(error: BaseException, operation: str, name: str, url: str) -> BootseerError:
    """Return the error of ours that says what an error of hdfs-native's means.

    What is not the NameNode's verdict is a matter of connections and time, and Transient.
    """
    text = str(error)
    meaning: type[BootseerError]
    reason = ""
    if isinstance(error, FileNotFoundError):
        meaning = NotFound
    elif isinstance(error, FileExistsError):
        meaning = Conflict
    elif found := _RPC.search(text):
        kind, text = found[1].rpartition(".")[2], found[2]
        meaning, reason = _CLASSES.get(kind, (Unavailable, ""))
        if "(is not a directory)" in text:
            meaning, reason = _CLASSES["ParentNotDirectoryException"]
        elif "must both be directories" in text:
            meaning, reason = Conflict, "a folder and an object cannot take each other's place"
    elif "No NameNode hosts found" in text:
        meaning = ConfigError
        reason = f"{url} names neither HOST:PORT nor a nameservice of Hadoop's configuration; "
        reason += "hdfs.conf_dir or HADOOP_CONF_DIR names the folder of that"
    elif "GSS_S_NO_CRED" in text or "GSS_S_CREDENTIALS_EXPIRED" in text:
        meaning = Denied
        reason = "no Kerberos ticket is there for this user; see hdfs.kerberos_cache"
    else:
        meaning = Transient
    if not reason:
        reason = " ".join(_STACK.sub("", text).split())[:_TEXT_LENGTH] or type(error).__name__
    return meaning(f"cannot {operation} {name!r} in {url}: {reason}")


@contextmanager
def translated(operation: str, name: str, url: str) -> Iterator[None]:
    """Turn every error that hdfs-native raises in the block into the error of ours.

    Its panics are no `Exception`, and are meant, too.
    """
    try:
        yield
    except BootseerError:
        raise
    except Exception as error:
        raise translate(error, operation, name, url) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Unavailable(f"cannot {operation} {name!r} in {url}: hdfs-native: {error}") from error
