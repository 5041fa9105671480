"""What a training calls between two steps: due checkpoints, stop requests, the ledger."""
