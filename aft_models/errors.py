"""The one error of this package that is the caller's to mend."""


class AftModelsError(ValueError):
    """A model, layer, checkpoint or training request that cannot be; it says what to do."""
