"""What torch's compiler says when it is first imported is no concern of a test."""

import warnings

with warnings.catch_warnings():
    # It warns about torch itself.
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch._inductor.compile_fx  # noqa: F401  imported here once, before any test
