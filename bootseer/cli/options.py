"""Options that many commands have."""

from __future__ import annotations

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
