"""What keeps Spark from starting, each as one line for a person."""

from penstock.errors import PenstockError


class CannotStart(PenstockError):
    """The root of these errors."""


class NoSpark(CannotStart):
    missing: str

    line = "{missing}; pip install 'penstock[spark]' installs what a pipeline needs"


class NoJava(CannotStart):
    found: str

    line = "Spark needs Java 17 or newer, found {found}; on Debian: apt-get install openjdk-17-jre-headless"
