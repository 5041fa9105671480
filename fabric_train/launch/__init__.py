"""Fabric in the world that torchrun describes, in a number format, or in processes of its own."""
