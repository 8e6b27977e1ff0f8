"""An object with some of its methods replaced: compiled objects cannot be patched."""


class Overriding:
    def __init__(self, inner: object, **methods: object) -> None:
        self.__dict__.update(methods)
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)
