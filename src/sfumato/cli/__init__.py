"""The command line: one file for each group of verbs; `main` finds them, `options` has what several share."""
