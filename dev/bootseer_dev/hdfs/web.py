"""What the daemons' web servers say: JMX and WebHDFS, asked from within the cluster's network."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode

from bootseer.errors import NotFound, Unavailable
from bootseer_dev.cluster.machines import Machines
from bootseer_dev.cluster.spec import address
from bootseer_dev.hdfs import conf

_TIMEOUT_S = 20


def jmx(machines: Machines, machine: str, bean: str) -> dict[str, Any]:
    """Ask a machine's daemon for the figures under a name; {} if it has none.

    Raises:
        Unavailable: it does not answer.
    """
    document = _get(machines, machine, f"/jmx?qry={bean}")
    found: list[dict[str, Any]] = document["beans"]
    return found[0] if found else {}


def webhdfs(machines: Machines, machine: str, path: str, op: str, **parameters: str) -> Any:
    """Ask the NameNode on a machine by WebHDFS, as its superuser; returns what JSON it answers.

    Args:
        machines: the cluster.
        machine: the active NameNode's.
        path: in the file system, absolute.
        op: an operation that reads, and that the NameNode answers itself.
        parameters: of the operation.

    Raises:
        NotFound: there is no such file.
        Unavailable: it does not answer, or with another error.
    """
    query = urlencode({"op": op, "user.name": conf.SUPERUSER, **parameters})
    return _get(machines, machine, f"/webhdfs/v1{quote(path)}?{query}")


def _get(machines: Machines, machine: str, target: str) -> Any:
    is_datanode = machine in machines.spec.datanode_names
    port = conf.DATANODE_HTTP_PORT if is_datanode else conf.HTTP_PORT
    connection = http.client.HTTPConnection(address(machine), port, timeout=_TIMEOUT_S)
    try:
        connection.sock = machines.connect(address(machine), port, timeout_s=_TIMEOUT_S)
        connection.request("GET", target)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status == http.client.NOT_FOUND:
            raise NotFound(f"the daemon on {machine} does not have {target}: {text}")
        if answer.status != http.client.OK:
            raise Unavailable(f"the daemon on {machine} answers {answer.status}: {text}")
        return json.loads(text)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unavailable(f"the daemon on {machine} does not answer: {error}") from error
    finally:
        connection.close()
