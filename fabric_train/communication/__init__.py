"""How processes reduce gradients or weights, for any training loop.

Nothing here knows of strategies: a plain loop with a process group can use every class.
"""
