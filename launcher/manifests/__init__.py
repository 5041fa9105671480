"""Anybody's manifests and scripts: read, checked, and manifests played on a Docker engine."""
