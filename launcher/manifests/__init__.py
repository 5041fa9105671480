"""Anybody's manifests: read, checked, and played on a Docker engine."""
