"""The command line: commands, what their words ask for, and what is told of an error."""
