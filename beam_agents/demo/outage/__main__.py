import typer

from beam_agents.demo.outage.app import demo_outage

typer.run(demo_outage)
