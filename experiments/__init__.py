"""Records of what was measured: scripts, their settings, and their results as JSON."""
