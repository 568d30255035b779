"""`bootseer importer` as it is typed."""

import json

from click.testing import CliRunner

from bootseer.cli.image import importer as cli

PATH = "/run/bootseer/jobs/7/images/1/image"


def test_get_prints_the_path_alone_or_as_json(monkeypatch):
    asked = []
    monkeypatch.setattr(cli.pyxis, "get", lambda uri, environ: asked.append(uri) or PATH)
    plain = CliRunner().invoke(cli.importer, ["get", "bootseer://train:v2"])
    assert (plain.exit_code, plain.output) == (0, f"{PATH}\n")
    as_json = CliRunner().invoke(cli.importer, ["get", "--json", "bootseer://train:v2"])
    assert as_json.exit_code == 0 and json.loads(as_json.output) == {"path": PATH}
    assert asked == ["bootseer://train:v2"] * 2
