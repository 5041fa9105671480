"""How processes exchange weights and gradients; for the strategies, and for any loop of torch."""
