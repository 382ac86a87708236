"""Run AI agents as keyed, stateful, fault-tolerant steps of an Apache Beam pipeline."""
