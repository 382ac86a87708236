"""A store's outage under the eyes of Prometheus and Alertmanager, all of them real."""
