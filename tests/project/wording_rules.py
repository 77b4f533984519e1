"""Wording rules: openings of docstrings, words with better ones, names that say nothing.

`python -m tests.project.wording_rules` prints the number of hits of each file and the totals. With paths it
prints each hit below them as `file:line: message`.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from recorder.garbage_collector import paused_garbage_collection

ROOT = Path(__file__).parents[2]
FOLDERS = ("api", "benchmarks", "docs", "examples", "notebooks", "pipelines", "recorder", "tests")
SUFFIXES = {".py", ".md", ".ipynb"}

# A docstring opens with a verb (functions) or a noun (classes, modules), never with one of these.
OPENINGS = ("What", "Who", "Whose", "Whether", "How", "Where", "Which", "That", "When")

# The first words of docstrings of functions: ruff's D401 lets a noun or "For each" pass.
VERBS = frozenset(
    re.findall(
        r"\w+",
        """
    Abort Accept Add Adjust Admit Allow Answer Append Apply Archive Ask Assert Assign Attach Back Beat
    Begin Bind Bound Break Bring Build Calculate Call Cancel Carry Change Charge Check Choose Claim Clean
    Clear Close Collect Combine Commit Compact Compare Compile Complete Compute Configure Confirm Connect
    Consume Continue Convert Copy Count Create Credit Cut Decide Decode Decrypt Delete Deliver Derive
    Describe Detect Disable Discard Dispatch Divide Do Download Drain Draw Drop Emit Empty Enable Encrypt
    End Ensure Enter Erase Escape Estimate Exclude Execute Expand Expire Export Extract Fail Fetch Fill
    Filter Find Finish Fix Flush Follow Forget Format Generate Get Give Grant Group Handle Hash Have Hide
    Hold Identify Ignore Import Index Initialize Insert Install Invalidate Iterate Join Judge Keep Kill
    Leave Let List Listen Load Lock Log Lower Maintain Make Mark Mask Match Materialize Measure Merge
    Migrate Move Name Normalize Note Notify Open Override Overwrite Pack Pair Parse Pass Pause Pick
    Pickle Plan Poll Prefer Preload Prepare Print Probe Produce Provide Prune Publish Purge Push Put
    Queue Raise Rank Read Rearrange Rebuild Receive Recompute Record Recount Recover Refuse Register
    Reject Release Remember Remove Rename Renew Repeat Replace Replay Report Request Require Reserve
    Reset Resolve Restart Restore Restrict Resume Retry Return Reuse Revoke Rewrite Run Save Scan
    Schedule Seal Search Select Send Serve Set Show Shrink Simulate Skip Sort Split Start Stop Store
    Stream Submit Subscribe Subtract Sum Summarize Suspend Sweep Switch Tag Take Translate Trim Truncate
    Turn Undo Unlock Update Upload Use Validate Verify Visit Wait Wake Walk Watch Weigh Work Wrap Write
    Yield
        """,
    )
)
PRODUCT_FOLDERS = {"api", "pipelines", "recorder"}
VERB_FOLDERS = ("api/", "benchmarks/", "pipelines/", "recorder/", "tests/")

# "Counts of sessions" opens with a noun, "Counts sessions" with a verb, which a class has not.
_NOUN_FOLLOWERS = frozenset(
    re.findall(
        r"\w+", "of on that with for from in to at between beside by and whose which before while under"
    )
)

_THIRD_PERSONS = {
    re.sub("([^aeo])ys$", r"\1ies", re.sub("(s|sh|ch|x|z|o)s$", r"\1es", f"{verb}s"))
    for verb in VERBS | {"Carry", "Delay", "Number"}
} | {"Has"}

# Words that comments and constants of the product avoid too.
_EVERYWHERE = re.compile(r"\b(meanwhile|anew|nobody|somebody)\b", re.IGNORECASE)

# Word → the expression that matches its forms. Spaces match line ends too.
WORDS = {
    "tell": r"tell|tells|telling|told",
    "look": r"(?:look|looks|looked|looking)(?!(?: |-)up\b)",
    "stand": r"(?:stand|stands|standing|stood)(?!-)",
    "lie": r"lie|lies|lying|lay|lain",
    "come to": r"(?:come|comes|coming|came) to",
    "be had": r"(?:be|been|being|is|are|was|were) had",
    "hand over": r"(?:hand|hands|handing|handed)(?: |-)over",
    "give up": r"(?:give|gives|giving|gave|given)(?: |-)up",
    "make good": r"(?:make|makes|making|made) good",
    "anew": r"anew",
    "thus": r"thus",
    "meanwhile": r"meanwhile",
    "nobody": r"nobody|nobody's",
    "somebody": r"somebody|somebody's",
    # A service may be behind a proxy; a reader that is late is not "behind".
    "behind": r"behind(?! (?:(?:a|an|the|your|its|this) )?(?:[\w-]+ )?"
    r"(?:proxy|proxies|balancer|balancers|gateway|firewall|NAT)\b)",
}
_WORDS = re.compile(
    r"\b(?=[abcghlmnst])(?:"
    + "|".join(
        rf"(?P<w{number}>(?:{pattern})\b)".replace(" ", r"\s+")
        for number, pattern in enumerate(WORDS.values())
    )
    + ")",
    re.IGNORECASE,
)
_OPENING = re.compile(rf"\W*({'|'.join(OPENINGS)})\b")

DULL_NAMES = {"found", "place", "told", "asked", "own", "one"}

# A part of a name of the product between underscores.
DULL_PARTS = {"told"}

# Text of calls, assignments and dictionaries under these names is shown to users.
SHOWN = {"title", "detail", "message", "description", "help"}

# A line (without its indentation) → the reason why its hits are allowed.
EXCEPTIONS: dict[str, str] = {
    "captured_told: int = Field(default=0, sa_column_kwargs=_ZERO)": "a column of the database",
    "exported_told: int = Field(default=0, sa_column_kwargs=_ZERO)": "a column of the database",
    'user: str = "nobody"': "a user of the system",
}

_PROPERTIES = {"property", "lazy_property", "setter"}
_CODE = re.compile(r"```.*?```|``[^`]*``|`[^`]*`|https?://\S+|\]\([^)\s]*\)", re.DOTALL)
_EITHER_PLURAL = re.compile(r"[a-z]\(s\)")
_BUILTIN_ERRORS = {
    "Exception",
    "BaseException",
    "ValueError",
    "TypeError",
    "KeyError",
    "RuntimeError",
    "OSError",
}


class Hit(NamedTuple):
    """One violation of a rule."""

    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class Text(NamedTuple):
    """A piece of prose and the line on which it starts."""

    content: str
    line: int
    is_docstring: bool = False
    follows_lines: bool = True  # False for a string constant, whose line ends are not those of the file


def list_files(root: Path, below: Iterable[Path] = ()) -> list[Path]:
    """Return the files under the rules below `root`, or those of them in the given files and folders."""
    files = [path for path in root.glob("*.md") if path.is_file()]
    for folder in FOLDERS:
        files += [path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES]
    chosen = [root / path for path in below]
    if chosen:
        files = [path for path in files if any(path.is_relative_to(folder.resolve()) for folder in chosen)]
    return sorted(path for path in files if not any(part.startswith(".") for part in path.parts[-3:]))


def find_error_classes(trees: Iterable[list[ast.AST]]) -> set[str]:
    """Return the names of all classes that derive from an exception, across modules."""
    bases: dict[str, set[str]] = {}
    for nodes in trees:
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(_last_name(base) for base in node.bases)
    errors = set(_BUILTIN_ERRORS)
    while more := {name for name, parents in bases.items() if name not in errors and parents & errors}:
        errors |= more
    return errors


def find_hits(root: Path, below: Iterable[Path] = ()) -> list[Hit]:
    """Return all hits below `root`, without those of `EXCEPTIONS`, in the order of files and lines."""
    # Each file is walked once: parsing and walking are most of the time. Garbage collection would double it.
    with paused_garbage_collection():
        trees = {
            path: list(ast.walk(ast.parse(path.read_text())))
            for path in list_files(root)
            if path.suffix == ".py"
        }
    errors = find_error_classes(trees.values())
    hits: list[Hit] = []
    for path in list_files(root, below):
        name = path.relative_to(root).as_posix()
        lines = path.read_text().splitlines()
        if path.suffix == ".py":
            texts = list(_read_docstrings(trees[path])) + list(_read_error_texts(trees[path], errors))
            file_hits = [*_check_names(name, trees[path]), *_check_module_name(name)]
            if name.startswith(VERB_FOLDERS):
                file_hits += _check_verbs(name, trees[path])
            if name.partition("/")[0] in PRODUCT_FOLDERS:
                file_hits += _check_name_parts(name, trees[path])
                file_hits += [*_check_plurals(name, trees[path]), *_check_classes(name, trees[path])]
                file_hits += _check_lines(name, lines)
        else:
            texts = list(_read_notebook(path)) if path.suffix == ".ipynb" else [Text(path.read_text(), 1)]
            file_hits = []
        for text in texts:
            file_hits += _check_text(name, text)
        hits += sorted(
            {hit for hit in file_hits if lines[hit.line - 1 : hit.line] and not _is_exempt(lines, hit)}
        )
    return hits


def _is_exempt(lines: list[str], hit: Hit) -> bool:
    return lines[hit.line - 1].strip() in EXCEPTIONS


def _last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name: `Problem` of `errors.Problem`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _read_docstrings(nodes: list[ast.AST]) -> Iterator[Text]:
    """Yield docstrings, and strings below fields, which document them."""
    for node in nodes:
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield Text(node.value.value, node.lineno, is_docstring=True)


def _read_error_texts(nodes: list[ast.AST], errors: set[str]) -> Iterator[Text]:
    """Yield the strings that users see: in error classes, in their calls, under the names of `SHOWN`."""
    shown: list[ast.AST] = []
    for node in nodes:
        match node:
            case ast.ClassDef() if any(_last_name(base) in errors for base in node.bases):
                shown += node.body
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner))) if owner in errors:
                shown += [*node.args, *node.keywords]
            case ast.Call() if _last_name(node.func) in errors:
                shown += [*node.args, *node.keywords]
            case ast.Call():
                shown += [word.value for word in node.keywords if word.arg in SHOWN]
            case ast.Assign():
                if any(_last_name(target) in SHOWN for target in node.targets):
                    shown.append(node.value)
            case ast.AnnAssign() if node.value and _last_name(node.target) in SHOWN:
                shown.append(node.value)
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                shown += [
                    value for key, value in pairs if isinstance(key, ast.Constant) and key.value in SHOWN
                ]
    for node in shown:
        yield from _read_strings(node)


def _read_strings(node: ast.AST) -> Iterator[Text]:
    """Yield the string constants below a node, the parts of an f-string as one text, without docstrings."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        yield Text("".join(map(str, parts)), node.lineno, follows_lines=False)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        if " " in node.value.strip():
            yield Text(node.value, node.lineno, follows_lines=False)
    elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        for child in ast.iter_child_nodes(node):
            yield from _read_strings(child)


def _read_notebook(path: Path) -> Iterator[Text]:
    """Yield the lines of markdown cells, each with its line in the file of the notebook."""
    raw = path.read_text().splitlines()
    start = 0
    for cell in json.loads("\n".join(raw))["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        lines = "".join(cell["source"]).splitlines(keepends=True)
        first = json.dumps(lines[0], ensure_ascii=False) if lines else ""
        start = next((number for number in range(start, len(raw)) if raw[number].strip(" ,") == first), start)
        yield Text("".join(lines), start + 1)


def _check_text(path: str, text: Text) -> Iterator[Hit]:
    opening = _OPENING.match(text.content) if text.is_docstring else None
    if opening:
        message = (
            f"docstring opens with {opening[1]!r}: begin with a verb (function) or a noun (class, module)"
        )
        yield Hit(path, text.line, "opening", message)
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", "x", code[0]), text.content)
    for match in _WORDS.finditer(prose):
        word = list(WORDS)[int((match.lastgroup or "w0")[1:])]
        line = text.line + (prose.count("\n", 0, match.start()) if text.follows_lines else 0)
        shown = " ".join(match[0].split())
        yield Hit(path, line, word, f"{shown!r}: use a standard verb or word")


def _check_verbs(path: str, nodes: list[ast.AST]) -> Iterator[Hit]:
    """Yield the functions, but for properties, whose docstring opens with no verb of the list."""
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(_last_name(decorator) in _PROPERTIES for decorator in node.decorator_list):
            continue
        word = next(iter((ast.get_docstring(node) or "").split()), "Return").strip(",.")
        if word not in VERBS and word not in OPENINGS:
            message = f"docstring opens with {word!r}: begin with a verb (a new verb is added to VERBS)"
            yield Hit(path, node.body[0].lineno, "verb", message)


def _check_classes(path: str, nodes: list[ast.AST]) -> Iterator[Hit]:
    """Yield the classes whose docstring opens with a verb in the third person: "Keeps rows"."""
    for node in nodes:
        words = (ast.get_docstring(node) or "").split() if isinstance(node, ast.ClassDef) else []
        if len(words) > 1 and words[0] in _THIRD_PERSONS and words[1].strip(",.:;") not in _NOUN_FOLLOWERS:
            message = f"docstring of a class opens with the verb {words[0]!r}: begin with a noun"
            yield Hit(path, node.body[0].lineno, "class", message)  # type: ignore[attr-defined]


def _check_lines(path: str, lines: list[str]) -> Iterator[Hit]:
    """Yield the words of `_EVERYWHERE` in any line, comments and constants included."""
    for number, line in enumerate(lines, 1):
        for match in _EVERYWHERE.finditer(line):
            yield Hit(path, number, match[1].lower(), f"{match[1]!r}: use a standard verb or word")


def _check_names(path: str, nodes: list[ast.AST]) -> Iterator[Hit]:
    for node in nodes:
        match node:
            case ast.FunctionDef(name="_") | ast.AsyncFunctionDef(name="_"):
                yield Hit(path, node.lineno, "_", "function named '_': name it by what it does")
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) if name in DULL_NAMES:
                yield _dull(path, node.lineno, name)
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                if name in DULL_NAMES:
                    yield _dull(path, node.lineno, name)
            case ast.alias(asname=name) if name in DULL_NAMES:
                yield _dull(path, node.lineno, str(name))


def _check_name_parts(path: str, nodes: list[ast.AST]) -> Iterator[Hit]:
    for node in nodes:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
            ) if name not in DULL_NAMES and DULL_PARTS.intersection(name.lower().split("_")):
                yield _dull(path, node.lineno, name)


def _check_plurals(path: str, nodes: list[ast.AST]) -> Iterator[Hit]:
    for node in nodes:
        match node:
            case ast.Constant(value=str(text)) if _EITHER_PLURAL.search(text):
                yield Hit(path, node.lineno, "plural", "'(s)': use recorder.number_formats")


def _dull(path: str, line: int, name: str) -> Hit:
    return Hit(path, line, "name", f"name {name!r}: call it by the thing that it holds")


def _check_module_name(path: str) -> Iterator[Hit]:
    if "_" in Path(path).with_suffix("").parts:
        yield Hit(path, 1, "_", "module or package named '_': name it by its subject")


def main(arguments: list[str]) -> int:
    """Print the hits under the given paths, or the counts of all files; return 1 if there are any."""
    root = Path.cwd()
    hits = find_hits(root, [Path(argument) for argument in arguments])
    if arguments:
        print(*hits, sep="\n")
    else:
        for path, count in sorted(Counter(hit.path for hit in hits).items()):
            print(f"{count:5} {path}")
    rules = Counter(hit.rule for hit in hits).most_common()
    folders = Counter(hit.path.partition("/")[0] for hit in hits).most_common()
    print("by rule:  ", ", ".join(f"{rule} {count}" for rule, count in rules))
    print("by folder:", ", ".join(f"{folder} {count}" for folder, count in folders))
    print(f"{len(hits)} hits")
    return int(bool(hits))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
