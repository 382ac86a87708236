from beam_agents.cli.app import main

main()
