"""Conversations with hosts through the OpenSSH client: its options, one session, its errors."""
