"""From what people have to a job file: launch lines, batch scripts, manifests, settings."""
