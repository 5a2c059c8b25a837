"""The errors of this package. Each message says what is wrong, why, and what to write instead."""


class DCOError(Exception):
    """Any error this package raises on purpose.

    >>> from avalanche_dco import DCOPlugin
    >>> from avalanche_dco.errors import DCOError
    >>> try:
    ...     DCOPlugin(k=0)
    ... except DCOError as error:
    ...     print(type(error).__name__)
    SettingError
    """


class SettingError(DCOError, ValueError):
    """An argument is outside the range in which the algorithm is defined."""


class ModelError(DCOError, RuntimeError):
    """The model does not fit what a plugin remembers, or offers nothing to constrain."""


class GradientError(DCOError, RuntimeError):
    """A gradient is not a number, or infinite."""


class DataError(DCOError, ValueError):
    """The data of an experience cannot be learned from."""


class LogError(DCOError, RuntimeError):
    """A metrics log is damaged, or another process writes to it."""


class CheckpointError(DCOError, RuntimeError):
    """A checkpoint cannot be written or read, or has unexpected content."""


class StateError(DCOError, ValueError):
    """The state of a plugin is damaged, or belongs to another plugin, model or version."""
