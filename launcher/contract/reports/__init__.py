"""What a node reports while it runs: vitals, looks at its workers, what its time goes to."""
