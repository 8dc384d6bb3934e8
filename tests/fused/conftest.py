"""What runs kernels is collected in a process that interprets them: see test_interpreted_alone."""

import os

collect_ignore = [] if os.environ.get("GRADWATCH_TRIAL_LEG") else ["interpreted"]
