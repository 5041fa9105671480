"""Anybody's manifests and scripts: read, checked, and made into job files."""
