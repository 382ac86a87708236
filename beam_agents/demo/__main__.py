from beam_agents.demo.app import main

main()
