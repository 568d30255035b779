"""What HDFS's errors mean."""

from __future__ import annotations

import pytest

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
from bootseer.store.hdfs.errors import translate, translated

NO_TICKET = "no Kerberos ticket is there for this user; see hdfs.kerberos_cache"
HADOOP = "org.apache.hadoop"


def rpc(kind: str, text: str = "what the server says") -> RuntimeError:
    return RuntimeError(f'RPCError("{HADOOP}.{kind}", "{text}\\n\\tat java.base/x.y\\n\\tat z")')


@pytest.mark.parametrize(
    ("error", "meaning", "says"),
    [
        (FileNotFoundError("/a"), NotFound, "/a"),
        (FileExistsError("/a"), Conflict, "/a"),
        (rpc("security.AccessControlException", "user=mallory"), Denied, "user=mallory"),
        (rpc("fs.ParentNotDirectoryException"), Conflict, "a folder above it is an object"),
        (
            rpc("security.AccessControlException", "/a (is not a directory)"),
            Conflict,
            "a folder above it is an object",
        ),
        (
            rpc("x.IOException", "a and b must both be directories"),
            Conflict,
            "a folder and an object cannot take each other's place",
        ),
        (rpc("fs.PathIsNotEmptyDirectoryException"), Conflict, "the folder is not empty"),
        (rpc("fs.InvalidPathException"), ConfigError, "HDFS does not allow this name"),
        (
            rpc("hdfs.protocol.FSLimitException$PathComponentTooLongException"),
            ConfigError,
            "the name is too long",
        ),
        (
            rpc("hdfs.protocol.NSQuotaExceededException"),
            OverQuota,
            "the quota of names is used up; have it raised",
        ),
        (rpc("ipc.StandbyException"), Transient, "the NameNode is on standby"),
        (rpc("x.NobodyKnowsException"), Unavailable, "what the server says"),
        (
            RuntimeError("GSSAPIError: GSS_S_NO_CRED"),
            Denied,
            NO_TICKET,
        ),
        (RuntimeError("GSS_S_CREDENTIALS_EXPIRED"), Denied, NO_TICKET),
        (
            RuntimeError('InvalidArgument("No NameNode hosts found")'),
            ConfigError,
            "hdfs://namenode/root names neither HOST:PORT nor a nameservice of Hadoop's "
            "configuration; hdfs.conf_dir or HADOOP_CONF_DIR names the folder of that",
        ),
        (RuntimeError("Connection reset\nby peer"), Transient, "Connection reset by peer"),
        (RuntimeError("\n"), Transient, "RuntimeError"),
        (RuntimeError("x" * 1000), Transient, "x" * 300),
    ],
)
def test_translates_errors(error: Exception, meaning: type[BootseerError], says: str) -> None:
    told = translate(error, "stat", "a/b", "hdfs://namenode/root")
    assert type(told) is meaning
    assert str(told) == f"cannot stat 'a/b' in hdfs://namenode/root: {says}"


class PanicException(BaseException):
    """Known by its name, as the library's is."""


def test_a_panic_of_the_library_is_an_error_of_the_store() -> None:
    says = "cannot read 'a' in hdfs://n: hdfs-native: past the end"
    with pytest.raises(Unavailable, match=says), translated("read", "a", "hdfs://n"):
        raise PanicException("past the end")


def test_what_is_no_error_of_the_library_s_is_let_through() -> None:
    ours = Conflict("as it is")
    for error in (ours, KeyboardInterrupt()):
        with pytest.raises(type(error)) as raised, translated("read", "a", "hdfs://n"):
            raise error
        assert raised.value is error
