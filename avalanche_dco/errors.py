"""What can go wrong, as types; each message says what, why, and what to write instead."""


class DCOError(Exception):
    """Any error this package raises on purpose."""


class SettingError(DCOError, ValueError):
    """An argument is outside the range in which the algorithm is defined."""


class ModelError(DCOError, RuntimeError):
    """The model does not fit what a plugin remembers, or offers nothing to constrain."""


class GradientError(DCOError, RuntimeError):
    """A gradient is not a number, or infinite."""


class CheckpointError(DCOError, RuntimeError):
    """A checkpoint cannot be written or read, or is not what it should be."""
