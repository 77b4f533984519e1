"""Browser of one live replay: it runs in a process of its own, as a user without rights. Contract §8."""

import fcntl
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

import recorder
from recorder.live.proxy import FilteringProxy
from recorder.settings import Settings, extend_program_environment

_START_S = 30.0
#: Beyond what a command may take by itself.
_GRACE_S = 10.0
_CLOSE_S = 5.0
#: More than the process sends: its own limit is a little lower.
_MOST_ANSWER_BYTES = 9_000_000
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "PLAYWRIGHT_BROWSERS_PATH")
_FOLDER_PREFIX, _LOG_NAME = "recorder-live-", "browser.log"
#: Age in seconds from which a folder is removed whose browser does not run any more.
_LEFT_S = 600.0


class NoBrowser(Exception):
    """The sandbox cannot be used here; the message says what to do."""


class BrowserLost(Exception):
    """The browser, or the process that holds it, has ended."""


class StoredStateRefused(Exception):
    """The browser does not take the stored state with which it was to begin."""


class PageUnresponsive(Exception):
    """The page keeps the browser from answering."""


class Browser:
    """The browser behind a proxy; every call may raise `BrowserLost` or `PageUnresponsive`."""

    def __init__(self, settings: Settings, proxy: FilteringProxy, *, grace_s: float = _GRACE_S) -> None:
        """Create a browser that is not started.

        Args:
            settings: the deployment.
            proxy: carries all its requests.
            grace_s: time for an answer beyond what a command may take by itself.
        """
        self._settings, self._proxy, self._grace_s = settings, proxy, grace_s
        #: The process that holds the browser, while it runs.
        self.process: subprocess.Popen[bytes] | None = None
        #: Where the browser may write; removed at the end.
        self.folder: Path | None = None
        self._received = b""
        self._log = Path()

    def start(self, viewport: tuple[int, int], state: dict[str, Any] | None = None) -> str:
        """Start the browser, and return its version.

        Args:
            viewport: width and height of the page.
            state: cookies and local storage with which it begins, as Playwright takes them.

        Raises:
            NoBrowser: if a part of it is missing, or the rights to start it.
            StoredStateRefused: if it does not take the state.
        """
        executable = find_chromium(self._settings)
        user = _find_browser_user(self._settings)
        remove_leftover_browser_folders()
        self.folder = Path(tempfile.mkdtemp(prefix=_FOLDER_PREFIX))
        self._log = self.folder / _LOG_NAME
        fixed = {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "PYTHONPATH": str(Path(recorder.__file__).parents[1]),
            "PYTHONSAFEPATH": "1",
        }
        inherited = {
            name: text for name, text in extend_program_environment({}).items() if name in _PASSED_ON
        }
        if user is not None:
            try:
                os.chown(self.folder, user.pw_uid, user.pw_gid)
            except OSError as error:  # a container without the ids of this user
                text = f"The browser cannot run as {user.pw_name} here ({error.strerror}); "
                raise NoBrowser(text + "name another user without rights in RECORDER_LIVE_USER.") from error
        try:
            with self._log.open("wb") as log:
                # Held by the browser's process too while it runs; see `remove_leftover_browser_folders`.
                fcntl.flock(log, fcntl.LOCK_EX)
                self.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "recorder.live.browser_process",
                        *([user.pw_name] if user else []),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=self.folder,
                    env={**inherited, **fixed},
                    start_new_session=True,
                )
        except OSError as error:
            raise NoBrowser(f"The browser's process does not start: {error.strerror}.") from error
        width, height = viewport
        try:
            answer = self.call(
                "open",
                timeout_ms=int(_START_S * 1000),
                executable=executable,
                no_sandbox=self._settings.browser.no_sandbox,
                server=f"http://127.0.0.1:{self._proxy.port}",
                user=self._proxy.user,
                password=self._proxy.password,
                viewport={"width": width, "height": height},
                state=state,
                trusted_key=self._proxy.key_hash,
            )
        except BrowserLost as error:
            raise NoBrowser(self._explain_failed_start(str(error))) from error
        if answer["version"] is None:
            raise StoredStateRefused
        return str(answer["version"])

    def call(self, command: str, *, timeout_ms: int = 0, **arguments: Any) -> dict[str, Any]:
        """Send a command to the process, and return its answer.

        Raises:
            BrowserLost: if the process or the browser has ended.
            PageUnresponsive: if the answer does not come; the browser is ended then.
        """
        process = self.process
        if process is None or process.stdin is None:
            raise BrowserLost("The browser is not running.")
        line = orjson.dumps({"do": command, "timeout_ms": timeout_ms, **arguments}) + b"\n"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError as error:
            raise BrowserLost("The browser's process has ended.") from error
        answer: dict[str, Any] = orjson.loads(self._read_line(timeout_ms / 1000 + self._grace_s))
        if "lost" in answer:
            raise BrowserLost(answer["lost"])
        return answer

    def close(self) -> None:
        """End the browser and its process, and remove its folder."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]
            with suppress(subprocess.TimeoutExpired):
                process.wait(_CLOSE_S)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = None

    def _read_line(self, seconds: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        until = time.monotonic() + seconds
        parts, size = [self._received], len(self._received)
        while b"\n" not in parts[-1]:
            left = until - time.monotonic()
            if left <= 0 or size > _MOST_ANSWER_BYTES or not select.select([descriptor], [], [], left)[0]:
                self.close()
                raise PageUnresponsive("The page did not let the browser answer in time.")
            chunk = os.read(descriptor, 1 << 20)
            if not chunk:
                raise BrowserLost("The browser's process has ended.")
            parts.append(chunk)
            size += len(chunk)
        line, _, self._received = b"".join(parts).partition(b"\n")
        return line

    def _explain_failed_start(self, reason: str) -> str:
        log = ""
        with suppress(OSError):
            log = self._log.read_text("utf-8", "replace")
        text = f"{reason}\n{log}"
        if "No module named 'playwright'" in text:
            return _NO_PLAYWRIGHT
        if any(word in text for word in ("PermissionError", "Permission denied", "EACCES")):
            return (
                f"The user {self._settings.browser.user} cannot start the browser: it must be able to read "
                "Playwright's files. Install them where all users may read, or name another user without "
                "rights in RECORDER_LIVE_USER."
            )
        if "sandbox" in text.lower() or "setuid" in text.lower():
            return (
                "Chromium's own sandbox does not start here. Allow user namespaces on this machine, or set "
                "RECORDER_LIVE_NO_SANDBOX=1 if a container or virtual machine confines the browser already."
            )
        return (
            "The browser does not start: "
            f"{reason.partition(chr(10))[0][:200]} Check RECORDER_CHROMIUM and RECORDER_LIVE_USER."
        )


_NO_PLAYWRIGHT = (
    "Playwright is not installed, so there is no live sandbox: install the extra `live` in "
    "the environment of `recorder replay-worker` and of Dagster."
)


def find_chromium(settings: Settings) -> str | None:
    """Return the path of Chromium; None leaves the choice of its own one to Playwright.

    Raises:
        NoBrowser: if Playwright is missing, or the browser that the operator names.
    """
    if find_spec("playwright") is None:
        raise NoBrowser(_NO_PLAYWRIGHT)
    if settings.browser.chromium is not None:
        path = shutil.which(settings.browser.chromium)
        if path is None:
            raise NoBrowser(
                f"RECORDER_CHROMIUM names {settings.browser.chromium}, which cannot be run; name another one."
            )
        return path
    return next(filter(None, map(shutil.which, _NAMES)), None)


def remove_leftover_browser_folders(*, older_than_s: float = _LEFT_S) -> None:
    """Remove folders of browsers whose workers were killed: a browser that runs holds the lock of its log.

    The folders are in the system's temporary folder, since the browser's user cannot read the data folder.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        with suppress(OSError):  # it runs, belongs to another user, or is removed by another worker
            if time.time() - folder.stat().st_mtime <= older_than_s:
                continue
            # Created again where a removal stopped after it: a process of the browser still wrote files.
            log = os.open(folder / _LOG_NAME, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(log)


def _find_browser_user(settings: Settings) -> pwd.struct_passwd | None:
    """Return the user as whom the browser runs if the service runs as root; None for the service's own.

    Raises:
        NoBrowser: if the user does not exist, or is root without an order to do without a sandbox.
    """
    if os.geteuid() != 0:
        return None
    try:
        user = pwd.getpwnam(settings.browser.user)
    except KeyError as error:
        text = f"There is no user {settings.browser.user}; name one without rights in RECORDER_LIVE_USER."
        raise NoBrowser(text) from error
    if user.pw_uid != 0:
        return user
    if not settings.browser.no_sandbox:
        raise NoBrowser(
            "Chromium's sandbox does not run as root; name a user without rights in RECORDER_LIVE_USER."
        )
    return None
