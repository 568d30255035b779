"""The cluster's configuration files: the examples given to administrators, names filled in."""

from __future__ import annotations

import re

from bootseer.errors import NotFound
from bootseer.slurm.plugin import share
from bootseer_dev.cluster.spec import HEAD, ClusterSpec


def example(name: str) -> str:
    """Return an example configuration file's text.

    Raises:
        NotFound: this installation lacks the examples.
    """
    return (share("slurm-conf-examples") / name).read_text()


def fill_in(text: str, values: dict[str, str]) -> str:
    """Replace every ``@WORD@`` by the value of that name.

    Raises:
        NotFound: the text has a word with no value.
    """

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise NotFound(f"the configuration has {match[0]}, for which there is no value")
        return values[match[1]]

    lines = (
        line if line.startswith("#") else re.sub(r"@([A-Z]+)@", value, line)
        for line in text.splitlines(keepends=True)
    )
    return "".join(lines)


def slurm_conf(spec: ClusterSpec) -> str:
    """Return the cluster's slurm.conf; the spec's extra lines replace those of the same key."""
    values = {
        "CLUSTER": f"bootseer-{spec.name}",
        "HEAD": HEAD,
        "NODES": f"n[1-{spec.nodes}]" if spec.nodes > 1 else "n1",
        "CPUS": str(spec.cpus_per_node),
        "MEMORY": str(spec.memory_mib_per_node),
    }
    keys = {line.partition("=")[0].lower() for line in spec.slurm_conf_extra}
    lines = fill_in(example("slurm.conf"), values).splitlines()
    kept = [line for line in lines if line.partition("=")[0].lower() not in keys]
    extra = [line for line in spec.slurm_conf_extra if not line.endswith("=")]
    return "\n".join([*kept, "", "# Extra", *extra, ""])
