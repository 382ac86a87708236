"""Telemetry plugins for beam-agents."""
