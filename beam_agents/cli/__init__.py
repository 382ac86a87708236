"""The command line: any agent over a file, on an embedded runner."""
