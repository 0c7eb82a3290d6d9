"""A real JupyterLab on loopback, and a notebook of it in a real browser."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from fedlab_course.runner import COURSE

OWN_FOLDERS = (
    *("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"),
    *("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR"),
    *("IPYTHONDIR", "MPLCONFIGDIR"),
)
SETTINGS = {  # no pop-ups, no rewriting behind our back, every cell in the page
    "apputils-extension/notification": {
        "fetchNews": "false",
        "checkForUpdates": False,
        "doNotDisturbMode": True,
    },
    "docmanager-extension/plugin": {"autosave": False},
    "notebook-extension/tracker": {"windowingMode": "none"},
}
CHROMIUM_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--disable-background-networking", "--disable-sync"),
    *("--disable-component-update", "--disable-quic"),
)
WANTS_PICTURES = bool(os.environ.get("FEDLAB_SCREENSHOTS"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LAB_SECONDS, CELLS_SECONDS = 400, 300  # generous: machines may be busy
PATIENCE = 60_000  # milliseconds until an answer is seen in the page
WIDTH = 1280  # pixels, of the page
WINDOW = {"width": WIDTH, "height": 900}
SHEET, BARS = 1600, 120  # pixels: a screenshot's share of a chapter; JupyterLab's own
SCROLL = """top => {
    const panel = document.querySelector('.jp-NotebookPanel .jp-WindowedPanel-outer');
    panel.scrollTo(0, top);
    return panel.scrollHeight;
}"""
HAS_SESSION = "window.jupyterapp?.shell.currentWidget?.sessionContext"
IS_READY = """async () => {
    await jupyterapp.restored;
    const panel = jupyterapp.shell.currentWidget;
    await panel.context.ready;
    await panel.sessionContext.ready;
}"""
KEEP_OWN_OUTPUTS = """() => {
    for (const cell of jupyterapp.shell.currentWidget.content.widgets)
        if (cell.model.type === 'code' && !cell.model.trusted) {
            cell.model.clearExecution();
            cell.model.trusted = true;
        }
}"""
ARE_DRAWN = """shown => document.body.innerText.includes('model not found')
    || document.querySelectorAll('.fl-explorer img').length >= shown"""
RUN = """async ([command, milliseconds]) => await Promise.race([
    jupyterapp.commands.execute(command),
    new Promise(done => setTimeout(() => done('too slow'), milliseconds))])"""
ASK_KERNEL = """async code => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    let said = '';
    const future = kernel.requestExecute({code, store_history: false});
    future.onIOPub = m => { said += m.content.text ?? m.content.evalue ?? ''; };
    await future.done;
    return said;
}"""
CUT_OFF = """() => {
    const right = document.querySelector('.jp-Notebook').getBoundingClientRect().right;
    const cells = document.querySelectorAll('.jp-OutputArea-output img, .fl-explorer');
    const wide = [...cells].filter(e => e.getBoundingClientRect().right > right);
    const tight = [...document.querySelectorAll('.widget-label, .jupyter-button')]
        .filter(e => e.scrollWidth > e.clientWidth + 1);
    return [...wide, ...tight].map(e => e.innerText || e.className);
}"""
WRITE_CELL = """([start, source]) => {
    const cells = jupyterapp.shell.currentWidget.content;
    const texts = cells.widgets.map(cell => cell.model.sharedModel);
    const place = texts.findIndex(text => text.source.includes(start));
    cells.activeCellIndex = place;
    texts[place].setSource(source);
    return place;
}"""
GO_TO_CELL = """id => {
    const cells = jupyterapp.shell.currentWidget.content;
    const place = cells.widgets.findIndex(cell => cell.model.id === id);
    cells.activeCellIndex = place;
    return place;
}"""


class Lab:
    """A running server: its address and its secret."""

    def __init__(self, process: subprocess.Popen, home: Path, root: Path) -> None:
        self.process, self.home, self.root = process, home, root
        self.token = ""

    def wait(self) -> None:
        """Until the server says where it listens; RuntimeError with its log if not."""
        end = time.monotonic() + LAB_SECONDS
        while True:
            for file in (self.home / "jupyter_runtime_dir").glob("jpserver-*.json"):
                with contextlib.suppress(json.JSONDecodeError):
                    self.url = json.loads(file.read_text())["url"].rstrip("/")
                    return
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.home / "server.log").read_text()[-2000:])
            time.sleep(0.1)


def _write_setting(home: Path, plugin: str, values: dict) -> None:
    folder = home / "jupyterlab_settings_dir" / "@jupyterlab"
    file = folder / f"{plugin}.jupyterlab-settings"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values))


@contextlib.contextmanager
def jupyter_lab(root: Path, home: Path) -> Iterator[Lab]:
    """Serve ``root`` on a free port of this machine; everything else lies in ``home``.

    The server and its kernels are gone when the block ends.
    """
    env = os.environ | {name: str(home / name.lower()) for name in OWN_FOLDERS}
    env |= {"OMP_NUM_THREADS": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    env["PYTHONPATH"] = str(Path(__file__).parents[2])
    env.pop("MPLBACKEND", None)  # else figures would not appear
    for name in OWN_FOLDERS:
        (home / name.lower()).mkdir(parents=True)
    for plugin, values in SETTINGS.items():
        _write_setting(home, plugin, values)
    token = secrets.token_hex(16)
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"]
    command += ["--port=0", "--expose-app-in-browser", "--ServerApp.allow_root=True"]
    command += [f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={root}"]
    command += ["--LabApp.extension_manager=readonly"]
    command += [f"--LabApp.app_settings_dir={COURSE / 'lab'}"]  # as `make lab` does
    with open(home / "server.log", "wb") as log:
        streams = {"stdout": log, "stderr": log, "start_new_session": True}
        process = subprocess.Popen(command, env=env, cwd=root, **streams)
        try:
            lab = Lab(process, home, root)
            lab.token = token
            lab.wait()
            yield lab
        finally:
            # asking the server to end its kernels takes it ten seconds and more
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()


class Notebook:
    """One notebook in the page, and everything that went wrong there.

    It is shown in both themes, and pictures are taken if FEDLAB_SCREENSHOTS is set.
    """

    def __init__(self, page, lab: Lab, name: str, pictures: Path) -> None:
        from playwright.sync_api import expect

        self.page, self.home, self.pictures = page, lab.url, pictures
        self.troubles: list[str] = []
        page.set_default_timeout(PATIENCE)
        expect.set_options(timeout=PATIENCE)
        self.watched = {
            "pageerror": lambda error: self.troubles.append(f"page: {error}"),
            "console": self._note_console,
            "request": self._note_request,
        }
        for event, note in self.watched.items():
            page.on(event, note)
        page.goto(f"{lab.url}/lab/tree/{name}?token={lab.token}&reset")
        page.wait_for_function(HAS_SESSION, timeout=LAB_SECONDS * 1000)
        page.evaluate(IS_READY)
        page.evaluate("jupyterapp.commands.execute('application:toggle-left-area')")

    def _note_console(self, message) -> None:
        if message.type == "error":
            self.troubles.append(f"console: {message.text}")

    def _note_request(self, request) -> None:
        local = (self.home, self.home.replace("http", "ws", 1), "data:", "blob:")
        if not request.url.startswith(local):
            self.troubles.append(f"outside: {request.url}")

    def save_and_open_again(self) -> None:
        """Save the notebook, end its kernel, and load it as it was saved.

        Outputs that the file came with are removed first: JupyterLab draws the widgets
        of a file only if all its outputs were made by running it there.

        On a busy machine the widgets' own manager may draw before it has read what was
        saved; the page is then loaded again, as a reader would.
        """
        shown = self.page.locator(".fl-explorer img").count()
        self.page.evaluate(KEEP_OWN_OUTPUTS)
        self.page.evaluate("jupyterapp.commands.execute('docmanager:save')")
        for _ in range(10):
            self.troubles.clear()
            self.page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")
            self.page.reload()
            self.page.wait_for_function(HAS_SESSION, timeout=LAB_SECONDS * 1000)
            self.page.evaluate(IS_READY)
            self.page.wait_for_function(ARE_DRAWN, arg=shown)
            self.page.wait_for_timeout(3000)
            if not self.page.get_by_text("model not found").count():
                return

    def close(self) -> None:
        """End the kernel, and listen no more."""
        for event, note in self.watched.items():
            self.page.remove_listener(event, note)
        self.page.evaluate("jupyterapp.serviceManager.sessions.shutdownAll()")

    def run_all(self) -> None:
        """Run every cell; AssertionError says that one failed or took too long."""
        self._run("notebook:run-all-cells")

    def run_cells(self, ids: Sequence[str]) -> None:
        """Run the cells with these ids, in this order."""
        for each in ids:
            assert self.page.evaluate(GO_TO_CELL, each) >= 0, each
            self._run("notebook:run-cell")

    def run_cell(self, containing: str, source: str) -> None:
        """Replace the first cell that has the text ``containing``, and run it."""
        assert self.page.evaluate(WRITE_CELL, [containing, source]) >= 0, containing
        self._run("notebook:run-cell")

    def _run(self, command: str) -> None:
        answer = self.page.evaluate(RUN, [command, CELLS_SECONDS * 1000])
        if answer is not True and answer is not None:
            shown = self.page.locator(".jp-RenderedText[data-mime-type*='stderr']")
            raise AssertionError(f"{command}: {answer}; {shown.all_inner_texts()}")

    def verdict(self, containing: str):
        """What the exercise answers in the cell that has the text ``containing``."""
        cell = self.page.locator(".jp-CodeCell", has_text=containing)
        return cell.first.locator(".fl-exercise")

    def ask_kernel(self, code: str) -> str:
        """What the kernel prints for code that is in no cell."""
        return self.page.evaluate(ASK_KERNEL, code).strip()

    def take_picture_of(self, place, name: str) -> None:
        """One part of the page in both themes, where somebody wants to see it."""
        if not WANTS_PICTURES:
            return
        with self._tall_page():
            for theme in ("Dark", "Light"):
                self.theme(theme)
                place.screenshot(path=f"{self.pictures}-{name}-{theme.lower()}.png")

    def cut_off(self) -> list[str]:
        """Labels that are too long for their room, pictures wider than the page."""
        return self.page.evaluate(CUT_OFF)

    def check_nothing_went_wrong(self) -> None:
        """No dialog, no error in page or console, no request to anybody else."""
        assert self.page.locator(".jp-Dialog, .Toastify__toast").count() == 0
        assert not self.troubles, "\n".join(self.troubles)

    def theme(self, name: str) -> None:
        """Change to JupyterLab's Light or Dark theme, until its splash is gone.

        It takes the splash away 200 ms later, and fails where two changes overlap.
        """
        change = (
            "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
        )
        self.page.evaluate(change, f"JupyterLab {name}")
        is_there = f"document.body.dataset.jpThemeName === 'JupyterLab {name}'"
        self.page.wait_for_function(
            f"{is_there} && !document.querySelector('#jupyterlab-splash')"
        )

    def take_pictures(self) -> None:
        """The whole chapter in both themes, sheet by sheet, for people to look at."""
        with self._tall_page():
            for theme in ("Dark", "Light"):
                self.theme(theme)
                if not WANTS_PICTURES:
                    continue
                for number in range(self.page.evaluate(SCROLL, 0) // SHEET + 1):
                    self.page.evaluate(SCROLL, number * SHEET)
                    file = f"{self.pictures}-{theme.lower()}-{number + 1:02}.png"
                    self.page.screenshot(path=file)

    @contextlib.contextmanager
    def _tall_page(self) -> Iterator[None]:
        """Room for a whole sheet."""
        self.page.set_viewport_size({"width": WIDTH, "height": SHEET + BARS})
        yield
        self.page.set_viewport_size(WINDOW)


@contextlib.contextmanager
def browser_page(play, profile: Path) -> Iterator:
    """A fresh page of the system's Chromium, 1280 px wide."""
    context = play.chromium.launch_persistent_context(
        str(profile),
        executable_path=CHROMIUM,
        args=list(CHROMIUM_FLAGS),
        viewport=WINDOW,
    )
    try:
        yield context.pages[0] if context.pages else context.new_page()
    finally:
        context.close()
