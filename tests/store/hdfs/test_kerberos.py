"""The HDFS store where nobody is believed without a ticket: real daemons and a real KDC."""

import json
import os
import sys
from pathlib import Path, PurePosixPath

import pytest
from bootseer_dev.cluster import Cluster, ClusterSpec
from bootseer_dev.cluster.poll import wait_until
from bootseer_dev.cluster.spec import HEAD, address
from bootseer_dev.hdfs import Hdfs, HdfsSettings, hadoop_jars
from bootseer_dev.hdfs.conf import RPC_PORT
from bootseer_dev.hdfs.java import TICKETS

from bootseer.errors import Denied
from bootseer.store.api.base import publish, read_all
from bootseer.store.hdfs.options import HdfsOptions
from bootseer.store.hdfs.store import HdfsStore

pytestmark = [pytest.mark.root, pytest.mark.hdfs, pytest.mark.kerberos]

BUILD = Path(__file__).parents[3] / "build"
NAMENODE = f"{address(HEAD)}:{RPC_PORT}"
KDC_PORT = 8888
SERVICES = (f"nn/{address(HEAD)}", f"HTTP/{address(HEAD)}", "dn/cluster")

KRB5_CONF = """
[libdefaults]
  default_realm = TEST
  default_ccache_name = FILE:{folder}/cache-%{{uid}}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  dns_canonicalize_hostname = false
  rdns = false
  udp_preference_limit = 1
[realms]
  TEST = {{
    kdc = {kdc}:{port}
  }}
[domain_realm]
  {kdc} = TEST
"""
KDC_CONF = """
[kdcdefaults]
  kdc_ports = {port}
  kdc_tcp_ports = {port}
[realms]
  TEST = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
  }}
"""

PUBLISH = """
import json, pwd, os, sys, trio
from bootseer.config import Config, User
from bootseer.store.api.base import publish
from bootseer.store.from_settings import connect

async def main():
    entry = pwd.getpwuid(os.getuid())
    config = Config(json.loads(sys.argv[1]))
    store = connect(config, User(entry.pw_name, entry.pw_uid, entry.pw_dir))
    await publish(store, "connected/object", b"1")
    print((await store.stat("connected/object")).owner)

trio.run(main)
"""


class Kdc:
    """A realm of its own, on a cluster's head; ends with the cluster."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.folder = cluster.state_dir / "krb5"
        self.folder.mkdir()
        self.folder.chmod(0o1777)
        fill = {"folder": self.folder, "kdc": address(HEAD), "port": KDC_PORT}
        self.conf = self.folder / "krb5.conf"
        self.conf.write_text(KRB5_CONF.format(**fill))
        (self.folder / "kdc.conf").write_text(KDC_CONF.format(**fill))
        # Where Kerberos, Java's own too, looks for it without being told: /etc is the cluster's.
        cluster.run(["cp", str(self.conf), "/etc/krb5.conf"])
        self._run("kdb5_util", "create", "-s", "-r", "TEST", "-P", "master")
        self._run("sh", "-c", f'setsid krb5kdc -n >"{self.folder}/log" 2>&1 </dev/null &')
        wait_until(lambda: cluster.is_listening(HEAD, KDC_PORT), "the KDC")

    def keytab(self, name, *principals):
        """Make principals, and return the file of their keys."""
        path = self.folder / f"{name}.keytab"
        for principal in principals:
            self._run("kadmin.local", "addprinc", "-randkey", principal)
            self._run("kadmin.local", "ktadd", "-k", str(path), principal)
        return path

    def kinit(self, principal, keytab, cache):
        """Get a ticket."""
        self._run("kinit", "-k", "-t", str(keytab), "-c", str(cache), principal)

    def _run(self, *argv):
        self.cluster.run(argv, env={"KRB5_KDC_PROFILE": f"{self.folder}/kdc.conf"})


@pytest.fixture(scope="module")
def kdc():
    jars = hadoop_jars(BUILD)
    with Cluster.up(ClusterSpec(name=f"krb5-{os.getpid()}", nodes=0, datanodes=2)) as cluster:
        started = Kdc(cluster)
        keys = started.keytab("hdfs", *SERVICES)
        started.kinit(SERVICES[0], keys, TICKETS)
        Hdfs.start(cluster, jars, HdfsSettings(site=secure(keys)))
        for user in ("alice", "mallory"):
            cache = started.folder / f"of-{user}"
            started.kinit(user, started.keytab(user, user), cache)
            # A ticket is for its user's eyes, and is found under the user's number.
            uid = int(cluster.run(["id", "-u", user]).stdout)
            own = started.folder / f"cache-{uid}"
            own.write_bytes(cache.read_bytes())
            os.chown(own, uid, uid)
            own.chmod(0o600)
        with pytest.MonkeyPatch.context() as patch, cluster.network():
            patch.setenv("KRB5_CONFIG", str(started.conf))
            yield started


def secure(keys):
    """What makes an HDFS ask for tickets, its daemons by addresses instead of names."""
    name_node, http, data_node = (f"{service}@TEST" for service in SERVICES)
    return {
        "hadoop.security.authentication": "kerberos",
        "hadoop.security.authorization": "true",
        "dfs.block.access.token.enable": "true",
        "dfs.namenode.kerberos.principal": name_node,
        "dfs.namenode.kerberos.principal.pattern": "*",
        "dfs.namenode.keytab.file": str(keys),
        "dfs.datanode.kerberos.principal": data_node,
        "dfs.datanode.keytab.file": str(keys),
        "dfs.web.authentication.kerberos.principal": http,
        "dfs.web.authentication.kerberos.keytab": str(keys),
        "dfs.data.transfer.protection": "authentication",
        "ignore.secure.ports.for.testing": "true",
    }


def at(kdc, path, cache, principal="alice"):
    conf_dir = str(kdc.cluster.state_dir / "etc" / "hadoop")
    options = HdfsOptions(conf_dir, f"FILE:{kdc.folder}/{cache}", principal)
    return HdfsStore(NAMENODE, PurePosixPath(path), options)


@pytest.mark.parametrize("principal", ["alice", "alice@TEST"])
async def test_who_has_the_ticket_is_the_owner(kdc, principal, monkeypatch):
    """And not who the environment says."""
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    store = at(kdc, "/user/alice", "of-alice", principal)
    await publish(store, "object", bytes(3_000_000))
    assert await read_all(store, "object", 3_000_000) == bytes(3_000_000)
    assert (await store.stat("object")).owner == "alice"


async def test_a_ticket_opens_no_more_than_it_should(kdc):
    store = at(kdc, "/user/alice", "of-mallory", "mallory")
    with pytest.raises(Denied, match="user=mallory"):
        await publish(store, "object", b"1")


@pytest.mark.parametrize(("cache", "principal"), [("none", "alice"), ("of-mallory", "alice")])
async def test_without_a_ticket_of_the_users_it_is_denied(kdc, cache, principal):
    with pytest.raises(Denied, match="no Kerberos ticket"):
        await at(kdc, "/user/alice", cache, principal).list()


@pytest.mark.parametrize("cache", ["", "FILE:{folder}/cache-{{uid}}"])
def test_the_settings_lead_to_the_users_ticket(kdc, cache):
    """Of which the default is where Kerberos looks for the tickets of a process's user."""
    settings = {
        "store.url": f"hdfs://{NAMENODE}/user/{{user}}",
        "hdfs.conf_dir": "/etc/hadoop",
        "hdfs.kerberos_cache": cache.format(folder=kdc.folder),
    }
    argv = [sys.executable, "-P", "-c", PUBLISH, json.dumps(settings)]
    assert kdc.cluster.run(argv, user="alice").stdout == "alice\n"
