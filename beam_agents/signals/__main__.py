import sys

from beam_agents.signals.reference import render

if __name__ == "__main__":
    sys.stdout.write(render())
