"""Before Ray starts: defaults, checks and the launch."""
