"""Where findings and records go: a sink is handed both and thinks about neither."""
