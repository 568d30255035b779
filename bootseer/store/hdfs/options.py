"""How to reach an HDFS, said without its library."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bootseer.errors import ConfigError

DEFAULT_CONF_DIR = "/etc/hadoop/conf"
"""Where Hadoop's own packages have it."""


@dataclass(frozen=True, slots=True)
class HdfsOptions:
    """How to reach an HDFS.

    Attributes:
        conf_dir: folder of core-site.xml and hdfs-site.xml; "" for none.
        kerberos_cache: the credential cache, such as ``FILE:/tmp/krb5cc_1000``; "" for the one that
            Kerberos finds by itself, if the configuration asks for Kerberos.
        kerberos_principal: whose credentials to take from `kerberos_cache`; without a realm, of
            the default one.
    """

    conf_dir: str = ""
    kerberos_cache: str = ""
    kerberos_principal: str = ""


def find_conf_dir(configured: str) -> str:
    """Return the folder of Hadoop's configuration; "" where there is none.

    Args:
        configured: an absolute path; "" for HADOOP_CONF_DIR's if set, else `DEFAULT_CONF_DIR`.

    Raises:
        ConfigError: the configured one is not there.
    """
    if configured:
        if not os.path.isabs(configured) or not os.path.isdir(configured):
            raise ConfigError(f"hdfs.conf_dir = {configured!r} is not the path of a folder")
        return configured
    found = Path(os.environ.get("HADOOP_CONF_DIR") or DEFAULT_CONF_DIR)
    return str(found) if found.is_dir() else ""
