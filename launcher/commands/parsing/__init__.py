"""How a command line is read: the table of commands, their options, the parser."""
