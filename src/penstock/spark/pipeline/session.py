"""The Spark session of a pipeline: one JVM beside this process, or a Spark Connect server elsewhere.

Declarative Pipelines are a part of Spark Connect. Locally, and on a cluster named by its master, the JVM
of the driver is started here with a Connect server in it, on a free port of the loopback interface that
only this process knows the token of. What JVM and workers print goes to the log of the project, so that
the terminal shows what matters.
"""

import os
import secrets
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from penstock.errors import ExitCode
from penstock.spark.jvm.driver import (
    DEFAULT_MASTER,
    is_local,
    output_to,
    prepare_environment,
    require_pyspark,
    stop_driver,
)
from penstock.spark.jvm.errors import NoSpark
from penstock.spark.jvm.java import require_java
from penstock.spark.pipeline.project import Project
from penstock.spark.pipeline.tables.formats import format_settings, require_format

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONCURRENT_FLOWS: Final = "spark.sql.pipelines.execution.maxConcurrentFlows"
CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
# How files of checkpoints are written: under another name, and then renamed. Spark's default does the same
# by an interface of Hadoop that starts programs (readlink was seen) when it looks at local files. With this
# one rows were in silver about 1.4 times as soon (benchmarks/README.md).
QUICK_CHECKPOINT_FILES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
# While one waits for a file or for the broker, another has the core.
FLOWS_OF_A_CORE: Final = 2
TOKEN_VARIABLE: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"
CONNECT_VARIABLE: Final = "SPARK_CONNECT_MODE_ENABLED"
# The log grows to this and is then renamed; one older one is kept.
LOG_BYTES: Final = "10MB"

_LOG_SETTINGS: Final = """\
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {path}
appender.file.filePattern = {path}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {size}
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""

_QUICK_PYTHON: Final = """\
#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | sed -E 's#[^:]*/(pyspark|py4j[^:/]*)\\.zip(:|$)##g; s#:$##')
export PYTHONPATH
exec {python} "$@"
"""


class PipelineSession:
    """`spark` is the Connect session in which pipelines run."""

    def __init__(self, spark: Any, driver: Any, log: Path) -> None:
        self.spark: SparkSession = spark
        self._driver = driver
        self._stopping = threading.Event()
        if driver is not None:
            end_with(driver.sparkContext._gateway.proc, self._stopping, log)

    def stop(self) -> None:
        """Ends the session, and the JVM when it is ours."""
        self._stopping.set()
        self.spark.stop()
        if self._driver is not None:
            stop_driver(self._driver)


def open_session(
    project: Project,
    configuration: Mapping[str, str],
    *,
    master: str | None = None,
    remote: str | None = None,
) -> PipelineSession:
    """Raises NoJava, NoSpark, NoFormat, BrokenProject; whatever Spark raises when it cannot start."""
    require_format(project, require_pipelines())
    project.own_directory.mkdir(exist_ok=True)
    if remote is not None:
        return PipelineSession(_connect(remote, configuration), None, project.log_path)
    require_java()
    with output_to(project.log_path):
        driver, port = _start_driver(project, configuration, master)
        # localhost: for this name alone the client takes a token without TLS.
        spark = _connect(f"sc://localhost:{port}", {})
    return PipelineSession(spark, driver, project.log_path)


def end_with(jvm: "subprocess.Popen[bytes]", stopping: threading.Event, log: Path) -> None:
    """Ends this process when the JVM has ended without being told to. Its client would ask for minutes
    whether it is back, and whoever started this process begins anew at once."""

    def watch() -> None:
        code = jvm.wait()
        if not stopping.is_set():
            sys.stderr.write(f"penstock: the JVM of Spark ended ({code}); its log is {log}\n")
            sys.stderr.flush()
            os._exit(ExitCode.FAILED)

    threading.Thread(target=watch, name="penstock-jvm", daemon=True).start()


def require_pipelines() -> str:
    """The version of PySpark. Raises NoSpark where it is missing, or is too old to have pipelines."""
    version = require_pyspark()
    try:
        from pyspark.pipelines import cli  # noqa: F401  # whether it can be imported is the question
    except ImportError as error:
        if version.startswith("4.0"):
            raise NoSpark(f"PySpark {version} has no pipelines, which came with 4.1") from None
        raise NoSpark(f"{error.name or 'a package'} is not installed") from None
    return version


def _start_driver(
    project: Project, configuration: Mapping[str, str], master: str | None
) -> tuple[Any, int]:
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    chosen = master or configuration.get("spark.master", DEFAULT_MASTER)
    prepare_environment(lambda: quick_python(project) if is_local(chosen) else sys.executable)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    os.environ[TOKEN_VARIABLE] = secrets.token_hex(16)
    settings = project.own_directory / "log4j2.properties"
    settings.write_text(_LOG_SETTINGS.format(path=project.log_path, size=LOG_BYTES))
    ours = {
        "spark.app.name": f"penstock {project.name}",
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "localhost",
        "spark.connect.grpc.binding.port": "0",
        "spark.sql.artifact.isolation.enabled": "true",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "true",
        "spark.ui.showConsoleProgress": "false",
    }
    conf = SparkConf(loadDefaults=True)
    lake = format_settings(project, pyspark.__version__, configuration)
    unless_chosen = {"spark.ui.enabled": "false", CONCURRENT_FLOWS: str(flows_at_once())}
    if urlsplit(project.storage).scheme in ("", "file"):
        unless_chosen[CHECKPOINT_FILES] = QUICK_CHECKPOINT_FILES
    for name, value in {**unless_chosen, **configuration, **lake, **ours}.items():
        conf.set(name, value)
    options = configuration.get("spark.driver.extraJavaOptions", "")
    derby = f"-Dderby.stream.error.file={project.own_directory / 'derby.log'}"
    logs = f"-Dlog4j2.configurationFile={settings}"
    conf.set("spark.driver.extraJavaOptions", f"{options} {logs} {derby}".strip())
    conf.set("spark.master", chosen)
    context = SparkContext.getOrCreate(conf)
    driver = SparkSession(context)
    service = getattr(driver._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return driver, int(getattr(service, "MODULE$").localPort())


def flows_at_once() -> int:
    """How many may start at once. Each starts Python processes, which have 10 s to come up: the 16 at once
    that are Spark's default are too many for a small machine that is busy."""
    return FLOWS_OF_A_CORE * len(os.sched_getaffinity(0))


def quick_python(project: Project) -> str:
    """The Python of the workers on this machine. Spark puts its own pyspark.zip before all other places,
    and nothing in a zip is compiled: every worker, of which an update starts dozens, would compile what it
    imports, for 0.8 s more of CPU. Without it they find pyspark among the packages of this Python."""
    script = project.own_directory / "python"
    script.write_text(_QUICK_PYTHON.format(python=shlex.quote(sys.executable)))
    script.chmod(0o755)
    # A file system may be mounted so that nothing on it can be run.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _connect(address: str, configuration: Mapping[str, str]) -> Any:
    os.environ[CONNECT_VARIABLE] = "1"
    from pyspark.sql.connect.session import SparkSession

    builder = SparkSession.builder.remote(address)
    builder = builder.config("spark.sql.connect.serverStacktrace.enabled", "false")
    for name, value in configuration.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
