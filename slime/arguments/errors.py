"""The one exception that a person reads as one line, without a traceback."""


class UserError(ValueError):
    """Something in the input is wrong. The message names the flag, file or sample, and says what to do."""


class ProcessDied(UserError):
    """A process of the run ended by itself or was killed."""
