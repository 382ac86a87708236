import typer

from beam_agents.cli.imports import importing_beam

with importing_beam():
    from beam_agents.demo.outage.app import demo_outage

typer.run(demo_outage)
