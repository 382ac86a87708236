from beam_agents.cli.imports import importing_beam

with importing_beam():
    from beam_agents.demo.app import main

main()
