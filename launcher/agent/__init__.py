"""The in-node agent, in folders by process; imports the standard library, torch and contract."""
