"""What is concluded from what a run left: pure."""
