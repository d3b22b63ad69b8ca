"""From what click has read to LaunchOptions."""

from dataclasses import fields

import click
from click.core import ParameterSource

from deadpool.cli.options import torchrun
from deadpool.cli.plan.options import LaunchOptions


def options_of(context: click.Context) -> LaunchOptions:
    """Returns what click has read."""
    values = dict(context.params)
    script, arguments = values.pop("script"), values.pop("args")
    foreign = torchrun.take_out(values)
    given = {name for name in values if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    own = {each.name: values.pop(each.name) for each in fields(LaunchOptions) if each.name in values}
    return LaunchOptions(script=script, arguments=tuple(arguments), job=values, given=frozenset(given), torchrun=foreign, **own)
