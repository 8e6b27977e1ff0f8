"""Sets up what a fresh clone lacks, and nothing that is there already.

    bootstrap.py env [EXTRA ...]   .venv with the pinned packages and this one, editable
    bootstrap.py compile           the hot modules, in place, when a C compiler is there
    bootstrap.py java              a Java runtime for Spark
    bootstrap.py ask-java          says when there is none; installs nothing
    bootstrap.py servers           brokers for tests of connectors, which skip those that are not there
    bootstrap.py browser           a browser for tests of pages, which are skipped without one

Runs on the system's python3 with the standard library alone. What was done is remembered by content
(stamps in .venv and build), so that a second call only compares hashes. Root gets system packages
from Debian's packages; anybody else is told in one line what to install. Each step says what it does
and how long that usually takes, and shows that it moves; what programs print is shown when they fail.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036 - runs on whatever python3 is there
    sys.exit("penstock needs Python 3.11 or newer: run make PYTHON=/path/to/python3")

import tomllib

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
BUILD = ROOT / "build"
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
CONSTRAINTS = ROOT / "constraints.txt"
PYPROJECT = ROOT / "pyproject.toml"
HOT_MODULES = SOURCE / "penstock" / "hot_modules.txt"
ENVIRONMENT_STAMP = VENV / "penstock.json"
COMPILE_STAMP = BUILD / "hot.json"

PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
# Not the full version: a security update of the system's Python changes it, and an environment made
# before it works on.
PYTHON_KIND = f"{sys.implementation.cache_tag} {sys.base_prefix}"
# Spark 4 runs on 17 and newer. Each Debian release packages some of these.
JAVA_OLDEST = 17
# How often a step that is under way says so.
TELL_TERMINAL_S = 1.0
TELL_FILE_S = 15.0
EXIT_INTERRUPTED = 130
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
# By their programs: Debian's packages.
SERVER_PACKAGES = {
    "redis-server": "redis-server",
    "rabbitmq-server": "rabbitmq-server",
    "mosquitto": "mosquitto",
}
# Of Debian, program and package: tests of pages drive it by Playwright.
BROWSER = "chromium"
# Where Debian puts programs that only root is expected to run.
SYSTEM_PROGRAMS = ("/usr/sbin", "/usr/lib/rabbitmq/bin")
KAFKA_VERSION = "4.3.1"
# Outside the work tree: 44 MB that all clones share. tests/kit/outside_servers.py looks there.
KAFKA_JARS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "kafka"
# Tells Debian's packages not to start their services: tests start their own.
START_POLICY = Path("/usr/sbin/policy-rc.d")


class SetupError(Exception):
    """Something is missing that only the user can provide. The text is one line."""


def say(text: str) -> None:
    print(f"setup: {text}", flush=True)


def run(command: Sequence[str], what: str, usually: str, **variables: str) -> None:
    """Run a step in the project's root. Its failure ends the setup, and shows what it printed."""
    code, output = watched(command, what, usually, **variables)
    if code != 0:
        sys.stderr.write(output)
        raise SetupError(f"failed with exit code {code}: {' '.join(command)}")


def watched(command: Sequence[str], what: str, usually: str, **variables: str) -> tuple[int, str]:
    """Exit code and output of a program, with a sign of life for whoever waits for it."""
    say(f"{what}; this usually takes {usually}")
    began_s = time.monotonic()
    with tempfile.TemporaryFile() as output:
        try:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        except FileNotFoundError:
            raise SetupError(f"cannot run {command[0]}: it is not installed") from None
        try:
            code = wait_and_tell(child, what, began_s)
        except KeyboardInterrupt:
            child.terminate()
            child.wait()
            raise
        output.seek(0)
        text = output.read().decode(errors="replace")
    if code == 0:
        say(f"done after {time.monotonic() - began_s:.0f} s")
    return code, text


def wait_and_tell(child: "subprocess.Popen[bytes]", what: str, began_s: float) -> int:
    """On a terminal the seconds count up in one line; elsewhere a line comes now and then."""
    on_terminal = sys.stdout.isatty()
    while True:
        try:
            code = child.wait(TELL_TERMINAL_S if on_terminal else TELL_FILE_S)
        except subprocess.TimeoutExpired:
            elapsed = f"setup: {what}, {time.monotonic() - began_s:.0f} s"
            print(
                f"\r{elapsed}" if on_terminal else elapsed,
                end="" if on_terminal else "\n",
                flush=True,
            )
            continue
        if on_terminal:
            print("\r\033[K", end="", flush=True)
        return code


def fingerprint(paths: Iterable[Path], *more: str) -> str:
    """A hash of the contents of files, and of words that matter as much."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    digest.update("\n".join(more).encode())
    return digest.hexdigest()


def read_stamp(path: Path) -> dict[str, object]:
    """What an earlier run left; a missing or damaged stamp means that nothing was done."""
    try:
        stamp = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(path: Path, stamp: dict[str, object]) -> None:
    partial = path.with_suffix(".new")
    partial.write_text(json.dumps(stamp, indent=1) + "\n")
    partial.replace(path)


def install_system_package(names: Sequence[str], reason: str) -> None:
    """Install the first of these packages that this Debian has, or say what to install."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise SetupError(f"{reason}; install it first, on Debian: apt-get install {names[0]}")
    say(f"{reason}; installing it from Debian's packages")
    # An update may fail for one source of many: whether the install works is what counts.
    apt_get("update", what="reading the lists of packages")
    for name in names:
        options = ("--yes", "--no-install-recommends", "install", name)
        complaint = apt_get(*options, what=f"installing {name}")
        if complaint is None:
            return
    raise SetupError(f"apt-get cannot install {' or '.join(names)}: {complaint}")


def apt_get(*arguments: str, what: str) -> str | None:
    """None when it worked, else the last line of what apt-get complained about."""
    command = ["apt-get", "-qq", *arguments]
    code, text = watched(command, what, "under a minute", DEBIAN_FRONTEND="noninteractive")
    if code == 0:
        return None
    return (text.strip().splitlines() or ["no reason given"])[-1]


# The virtual environment


def environment_key() -> str:
    return fingerprint([PYPROJECT, CONSTRAINTS, ROOT / "setup.py"], PYTHON_KIND, str(ROOT))


def make_environment(extras: Sequence[str]) -> None:
    key = environment_key()
    stamp = read_stamp(ENVIRONMENT_STAMP)
    recorded = stamp.get("extras")
    have = {str(extra) for extra in recorded} if isinstance(recorded, list) else set()
    if stamp.get("key") == key and have.issuperset(extras) and VENV_PYTHON.exists():
        return
    if stamp.get("python") != PYTHON_KIND or not VENV_PYTHON.exists():
        create_venv()
    wanted = sorted(have.union(extras))
    install_packages(wanted)
    write_stamp(ENVIRONMENT_STAMP, {"key": key, "python": PYTHON_KIND, "extras": wanted})


def create_venv() -> None:
    if find_spec("ensurepip") is None:
        install_system_package([f"{PYTHON_NAME}-venv"], f"{PYTHON_NAME} has no venv module")
    run([sys.executable, "-m", "venv", "--clear", str(VENV)], "creating .venv", "5 to 15 s")


def install_packages(extras: Sequence[str]) -> None:
    pip = [str(VENV_PYTHON), "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
    with PYPROJECT.open("rb") as file:
        build_tools = tomllib.load(file)["build-system"]["requires"]
    run([*pip, *build_tools], "installing what compiles the hot modules", "10 to 30 s")
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    what = f"installing pinned packages into .venv{''.join(f' [{extra}]' for extra in extras)}"
    usually = (
        "1 to 3 minutes, the download of Spark most of it" if "spark" in extras else "20 to 60 s"
    )
    # Compiling is a step of its own: here it would run again for every change of a pin.
    command = [*pip, "--no-build-isolation", "--editable", target]
    run(command, what, usually, PENSTOCK_COMPILE="never")


# The hot modules


def hot_sources() -> list[Path]:
    lines = (line.partition("#")[0].strip() for line in HOT_MODULES.read_text().splitlines())
    sources = [SOURCE / f"{name.replace('.', '/')}.py" for name in lines if name]
    for source in sources:
        if not source.is_file():
            raise SetupError(f"{HOT_MODULES.name} lists {source.relative_to(ROOT)}: not there")
    return sources


def compiled_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.so"))


def compile_stamp(key: str) -> dict[str, object]:
    return {"key": key, "files": [str(path.relative_to(SOURCE)) for path in compiled_files()]}


def touch_compiled() -> None:
    """The tests take a compiled file that is older than its source for stale. Here the contents are
    known to fit, whatever a checkout or a build that had nothing to do made of the times."""
    for path in compiled_files():
        path.touch()


def compile_hot_modules() -> None:
    sources = hot_sources()
    key = fingerprint([*sources, HOT_MODULES, CONSTRAINTS, ROOT / "setup.py"], PYTHON_KIND)
    if read_stamp(COMPILE_STAMP) == compile_stamp(key):
        touch_compiled()
        return
    COMPILE_STAMP.unlink(missing_ok=True)
    for path in compiled_files():
        path.unlink()
    reason = why_no_compiler()
    if reason is not None:
        say(f"the hot modules run pure: {reason}")
        return
    build = [str(VENV_PYTHON), "setup.py", "--quiet", "build_ext", "--inplace"]
    what = f"compiling {len(sources)} hot modules to machine code"
    run(build, what, "40 to 90 s", PENSTOCK_COMPILE="require")
    touch_compiled()
    write_stamp(COMPILE_STAMP, compile_stamp(key))


def why_no_compiler() -> str | None:
    """The reason that setup.py sees; missing headers of Debian's Python are put there first."""
    reason = ask_setup()
    headers_missing = reason is not None and "Python.h" in reason
    if headers_missing and sys.base_prefix == "/usr" and os.geteuid() == 0:
        install_system_package([f"{PYTHON_NAME}-dev"], f"{PYTHON_NAME} has no C headers")
        reason = ask_setup()
    return reason


def ask_setup() -> str | None:
    command = [str(VENV_PYTHON), "-c", "import setup; print(setup.why_no_compiler() or '')"]
    try:
        answer = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SetupError(f"cannot ask setup.py for a C compiler: {error}") from None
    return answer.stdout.strip() or None


# Java


def java_version(report: str) -> int | None:
    """The major version in what `java -version` prints: "17.0.1" is 17, and "1.8.0" was 8."""
    found = re.search(r'version "(?:1\.)?(\d+)', report)
    return int(found.group(1)) if found else None


def installed_java() -> int | None:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if program is None:
        return None
    answer = subprocess.run([program, "-version"], check=False, capture_output=True, text=True)
    return java_version(answer.stderr + answer.stdout)


def make_java() -> None:
    version = installed_java()
    if version is not None and version >= JAVA_OLDEST:
        return
    found = "found none" if version is None else f"found {version}"
    install_system_package(JAVA_PACKAGES, f"Spark needs Java {JAVA_OLDEST} or newer, {found}")
    version = installed_java()
    if version is None or version < JAVA_OLDEST:
        raise SetupError(f"Java {JAVA_OLDEST} is installed, but JAVA_HOME or PATH hides it")


def ask_java() -> None:
    """The broker runs without it, so that nothing is installed here that nobody asked for."""
    version = installed_java()
    if version is None or version < JAVA_OLDEST:
        found = "none is there" if version is None else f"{version} is there"
        say(f"the pipeline needs Java {JAVA_OLDEST}, and {found}; make java installs it")


# Brokers for the tests of connectors, and a browser


def make_servers() -> None:
    """Never fails: tests of a server that is missing are skipped, and say so."""
    missing = {
        program: package for program, package in SERVER_PACKAGES.items() if which(program) is None
    }
    if missing:
        install_for_tests("tests of connectors", sorted(missing.values()))
    if not list(KAFKA_JARS.glob(f"libs/kafka_*-{KAFKA_VERSION}.jar")):
        fetch_kafka()


def which(program: str) -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), *SYSTEM_PROGRAMS])
    return shutil.which(program, path=path)


def make_browser() -> None:
    """Never fails, as above."""
    if which(BROWSER) is None:
        install_for_tests("tests of pages", [BROWSER])


def install_for_tests(which_tests: str, packages: Sequence[str]) -> None:
    """What cannot be installed is said; its tests are skipped."""
    listed = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"their tests are skipped: no {listed}; on Debian: apt-get install {listed}")
        return
    say(f"{which_tests} want {listed}; installing it from Debian's packages")
    made_policy = not START_POLICY.exists()
    if made_policy:
        START_POLICY.write_text("#!/bin/sh\nexit 101\n")
        START_POLICY.chmod(0o755)
    try:
        apt_get("update", what="reading the lists of packages")
        options = ("--yes", "--no-install-recommends", "install", *packages)
        complaint = apt_get(*options, what=f"installing {listed}")
    finally:
        if made_policy:
            START_POLICY.unlink(missing_ok=True)
    if complaint is not None:
        say(f"their tests are skipped: apt-get cannot install {listed}: {complaint}")


def fetch_kafka() -> None:
    """By Maven, which is installed where it is missing."""
    if shutil.which("mvn") is None and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        apt_get("--yes", "--no-install-recommends", "install", "maven", what="installing maven")
    maven = shutil.which("mvn")
    if maven is None:
        say(
            "tests of routes to Kafka are skipped: no Maven to fetch it; on Debian: apt-get install maven"
        )
        return
    KAFKA_JARS.mkdir(parents=True, exist_ok=True)
    pom = KAFKA_JARS / "pom.xml"
    pom.write_text(KAFKA_POM.format(version=KAFKA_VERSION))
    partial = KAFKA_JARS / "libs.new"
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    code, output = watched(
        command, f"fetching Kafka {KAFKA_VERSION} into {KAFKA_JARS}", "20 to 60 s"
    )
    if code != 0 or not partial.is_dir():
        last = (output.strip().splitlines() or ["no reason given"])[-1]
        say(f"tests of routes to Kafka are skipped: Maven cannot fetch it: {last}")
        return
    shutil.rmtree(KAFKA_JARS / "libs", ignore_errors=True)
    partial.rename(KAFKA_JARS / "libs")


KAFKA_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>penstock</groupId>
  <artifactId>kafka-for-tests</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{version}</version>
    </dependency>
  </dependencies>
</project>
"""


def step_for(arguments: Sequence[str]) -> Callable[[], None]:
    if arguments and arguments[0] == "env":
        return partial(make_environment, arguments[1:])
    if list(arguments) == ["compile"]:
        return compile_hot_modules
    if list(arguments) == ["java"]:
        return make_java
    if list(arguments) == ["ask-java"]:
        return ask_java
    if list(arguments) == ["servers"]:
        return make_servers
    if list(arguments) == ["browser"]:
        return make_browser
    steps = "env [EXTRA ...] | compile | java | ask-java | servers | browser"
    raise SetupError(f"usage: bootstrap.py {steps}")


def main(arguments: Sequence[str]) -> int:
    try:
        step = step_for(arguments)
        BUILD.mkdir(exist_ok=True)
        # Two makes at once must not build one environment together.
        with (BUILD / "setup.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            step()
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: stopped; the next make goes on from here", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
