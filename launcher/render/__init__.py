"""Plan in, artifact out: pure renderers, one module per target, none importing another's."""
