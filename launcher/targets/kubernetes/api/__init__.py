"""The Kubernetes API: logging in as kubectl would, requests, and what the server refuses."""
