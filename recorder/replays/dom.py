"""DOM snapshots of format `nodes` as trees of elements. Spec §4.6.

A node is a text or `[tag, {attributes}, …children]`. `[[k, n]]` refers to node n, counted in post-order with
texts, of the snapshot k steps back along the `base` members, as in Playwright's traces. A child
`["template", {"shadowrootmode": "open"}, …]` is a shadow root. `__v` is a value, `__c` checked, `__h` hidden.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any

from recorder.memory.steps.action_tokens import find_acted_role
from recorder.replays.budget import Budget
from recorder.replays.recorded_session import InvalidRecording

#: Largest number of nodes, depth, and length of a chain of bases of one snapshot.
MAX_NODES = 100_000
MAX_DEPTH = 512
MAX_BASES = 64
_INVISIBLE = frozenset(("base", "head", "link", "meta", "noscript", "script", "style", "template", "title"))
_NAME_CHARACTERS = 160
_NAME_NODES = 64
_OWN_CHARACTERS = 1_000
#: Roles whose elements a page remembers.
_KEPT_ROLES = 100
_FIELDS = frozenset(("textbox", "searchbox", "combobox", "listbox", "spinbutton", "slider"))
_INPUT_BUTTONS = frozenset(("submit", "button", "reset"))
#: Roles that a screen's digest leaves out but targets have.
_MORE_ROLES = {
    "article": "article", "form": "form", "img": "img", "li": "listitem", "nav": "navigation", "ol": "list",
    "option": "option", "table": "table", "td": "cell", "tr": "row", "ul": "list",
}  # fmt: skip
_NO_ATTRS: dict[str, Any] = {}
_SIMPLE_TYPES = frozenset((bool, int, float))
#: Returns the `dom` member of a frame by the frame's id; None without one.
ReadSnapshot = Callable[[str], Mapping[str, Any] | None]


class DomElement:
    """An element: position in the tree, attributes, and its own text."""

    __slots__ = (
        "attrs", "children", "depth", "end", "index", "name", "own_text", "parent", "position", "role",
        "scope", "size", "tag", "visible",
    )  # fmt: skip

    def __init__(self, tag: str, attrs: Mapping[str, Any], parent: "DomElement | None", index: int) -> None:
        """Make the next child of an element; its tag is in lower case."""
        self.tag = tag
        self.attrs = attrs
        self.parent = parent
        #: Position in document order, and the position after the last descendant.
        self.index = index
        self.end = index + 1
        #: Elements and texts, in order.
        self.children: list[DomElement | str] = []
        self.own_text = ""
        #: Number of child elements.
        self.size = 0
        #: As `find_dom_element_role` returns it; None before it was asked for.
        self.role: str | None = None
        #: As `DomDocument.find_name` returns it; None before it was asked for.
        self.name: str | None = None
        if parent is None:
            self.depth: int = 0
            #: Position among the elements of its parent, from 1.
            self.position: int = 1
            #: Index of the shadow root that holds the element; -1 in the document itself.
            self.scope: int = -1
            self.visible: bool = True
        else:
            self.depth = parent.depth + 1
            self.position = parent.size = parent.size + 1
            self.scope = (
                parent.index if parent.tag == "template" and _is_dom_shadow_root(parent) else parent.scope
            )
            self.visible = parent.visible
            parent.children.append(self)
        if tag in _INVISIBLE:
            self.visible = self.visible and _is_dom_shadow_root(self)
        elif attrs and (
            "hidden" in attrs or attrs.get("__h") or (tag == "input" and attrs.get("type") == "hidden")
        ):
            self.visible = False

    def read_attribute(self, name: str) -> str | None:
        """Return an attribute as text; None without it. Names with `__` are the recorder's own.

        Browsers have no lists and objects as values: they are left out, as their texts may be long to write.
        """
        value = self.attrs.get(name)
        if type(value) is str:
            return None if name.startswith("__") else value
        return str(value) if type(value) in _SIMPLE_TYPES and not name.startswith("__") else None

    def list_elements(self) -> list["DomElement"]:
        """Return the child elements."""
        return [child for child in self.children if type(child) is DomElement]


class DomDocument:
    """A snapshot as a tree, with the indices that selectors are looked up in."""

    def __init__(self, elements: list[DomElement]) -> None:
        self.elements = elements
        self.by_id: dict[str, list[DomElement]] = {}
        #: Elements that state a role, which may be another than their tag implies.
        self._stating: list[DomElement] = []
        self._by_role: dict[str | None, list[DomElement]] = {}
        self._labels: dict[str, DomElement] | None = None
        by_tag: defaultdict[str, list[DomElement]] = defaultdict(list)
        for element in elements:
            by_tag[element.tag].append(element)
            attrs = element.attrs
            if attrs:
                identity = element.read_attribute("id")
                if identity is not None:
                    self.by_id.setdefault(identity, []).append(element)
                if "role" in attrs:
                    self._stating.append(element)
        self.by_tag = dict(by_tag)

    def list_by_role(self, role: str | None) -> list[DomElement]:
        """Return the visible elements of a role, in document order; of any role for None."""
        if role not in self._by_role:
            if len(self._by_role) >= _KEPT_ROLES:
                self._by_role.clear()  # roles come from clients, and a page may be kept for long
            if role is None:
                matches = [
                    element for element in self.elements if element.visible and find_dom_element_role(element)
                ]
            else:
                candidates = {element.index: element for element in self._stating}
                for tag, elements in self.by_tag.items():
                    # Of an input the type decides.
                    if tag == "input" or _imply_dom_role(tag) == role:
                        candidates |= {element.index: element for element in elements}
                matches = [
                    candidates[index]
                    for index in sorted(candidates)
                    if candidates[index].visible and find_dom_element_role(candidates[index]) == role
                ]
            self._by_role[role] = matches
        return self._by_role[role]

    def find_name(self, element: DomElement) -> str:
        """Return the accessible name of an element; it may be empty.

        The first of `aria-label`, the label for it, the label around it, a field's placeholder or name, the
        text, `alt` and `title`.
        """
        if element.name is None:
            element.name = self._read_accessible_name(element)
        return element.name

    def _read_accessible_name(self, element: DomElement) -> str:
        role = find_dom_element_role(element)
        name = element.read_attribute("aria-label") or self._find_label_text(element, role)
        if not name and role in _FIELDS:
            name = element.read_attribute("placeholder") or element.read_attribute("name") or ""
        elif not name and element.tag == "input" and element.read_attribute("type") in _INPUT_BUTTONS:
            shown = element.attrs.get("__v")
            name = shown if shown and type(shown) is str else element.read_attribute("value") or ""
        elif not name:
            name = (
                read_dom_element_text(element)
                or element.read_attribute("alt")
                or element.read_attribute("title")
                or ""
            )
        return " ".join(name[:_NAME_CHARACTERS].split())

    def _find_label_text(self, element: DomElement, role: str) -> str:
        if role not in _FIELDS and role not in ("checkbox", "radio", "switch"):
            return ""
        if self._labels is None:
            self._labels = {}
            for element_label in self.by_tag.get("label", ()):
                self._labels.setdefault(element_label.read_attribute("for") or "", element_label)
        label: DomElement | None = self._labels.get(element.read_attribute("id") or " ")
        parent = element.parent
        while label is None and parent is not None:
            if parent.tag == "label":
                label = parent
            parent = parent.parent
        return read_dom_element_text(label) if label is not None else ""


@lru_cache(maxsize=1_024)
def _imply_dom_role(tag: str) -> str:
    return find_acted_role(tag, _NO_ATTRS) or _MORE_ROLES.get(tag, "")


def find_dom_element_role(element: DomElement) -> str:
    """Return the role that an element states or its tag implies; it may be empty."""
    if element.role is None:
        element.role = (
            find_acted_role(element.tag, element.attrs)
            or _MORE_ROLES.get(element.tag, "")
            or (element.read_attribute("role") or "").lower().partition(" ")[0]
        )
    return element.role


def read_dom_element_text(element: DomElement) -> str:
    """Return the first words inside an element, with single spaces."""
    if len(element.children) == 1 and element.own_text:
        return " ".join(element.own_text[:_NAME_CHARACTERS].split())
    texts: list[str] = []
    stack: list[DomElement | str] = [element]
    characters = visits = 0
    while stack and characters < _NAME_CHARACTERS and visits < _NAME_NODES:
        visits += 1
        node = stack.pop()
        if isinstance(node, str):
            texts.append(node[:_NAME_CHARACTERS])
            characters += len(texts[-1])
        elif node.visible or node is element:
            stack.extend(reversed(node.children[:_NAME_NODES]))
    return " ".join(" ".join(texts)[:_NAME_CHARACTERS].split())


def read_dom_document(
    snapshot: Mapping[str, Any], read_snapshot: ReadSnapshot, budget: Budget
) -> DomDocument | None:
    """Return a snapshot as a tree; None if it is of another format.

    Args:
        snapshot: the `dom` member of a frame.
        read_snapshot: reads the snapshots that this one refers to.
        budget: every node counts.

    Raises:
        InvalidRecording: if the snapshot is malformed, cyclic, too large or too deep.
        BudgetExceeded: if the budget ends before.
    """
    if not isinstance(snapshot, Mapping) or snapshot.get("format") != "nodes":
        return None
    return DomDocument(_DomTreeBuilder(snapshot, read_snapshot, budget).build())


class _DomTreeBuilder:
    """Builder of the elements of one snapshot, without recursion: depth is the sender's choice."""

    def __init__(self, snapshot: Mapping[str, Any], read: ReadSnapshot, budget: Budget) -> None:
        self._chain = [snapshot]
        self._read = read
        self._budget = budget
        self._seen: set[str] = set()
        self._nodes: dict[int, list[Any]] = {}

    def build(self) -> list[DomElement]:
        """Return the elements in document order."""
        elements: list[DomElement] = []
        #: Nodes that follow in each of the elements around, with that element and its snapshot.
        around: list[tuple[Iterator[Any], DomElement | None, int]] = []
        nodes: Iterator[Any] = iter((self._chain[0].get("html"),))
        parent: DomElement | None = None
        level = count = 0
        while True:
            for node in nodes:
                count += 1
                if count > MAX_NODES:
                    raise InvalidRecording(f"A DOM snapshot has more than {MAX_NODES:,} nodes.")
                if type(node) is str and parent is not None:
                    parent.children.append(node)
                    if len(parent.own_text) < _OWN_CHARACTERS:
                        parent.own_text = f"{parent.own_text} {node[:_OWN_CHARACTERS]}".lstrip(" ")
                    continue
                if type(node) is not list or not node:
                    raise InvalidRecording("A DOM snapshot has a node that is neither a text nor [tag, …].")
                if type(node[0]) is list:
                    around.append((nodes, parent, level))
                    target, level = self._follow_reference(node[0], level)
                    nodes = iter((target,))
                    break
                tag, size = node[0], len(node)
                if type(tag) is not str or not tag:
                    raise InvalidRecording("A DOM snapshot has an element without a tag.")
                has_attrs = size > 1 and type(node[1]) is dict
                element = DomElement(tag.lower(), node[1] if has_attrs else _NO_ATTRS, parent, len(elements))
                if element.depth > MAX_DEPTH:
                    raise InvalidRecording(f"A DOM snapshot is nested deeper than {MAX_DEPTH} elements.")
                elements.append(element)
                first = 2 if has_attrs else 1
                if size == first + 1 and type(node[first]) is str:
                    # Most elements hold one text.
                    count += 1
                    element.children.append(node[first])
                    element.own_text = node[first][:_OWN_CHARACTERS]
                elif size > first:
                    around.append((nodes, parent, level))
                    nodes, parent = islice(node, first, None), element
                    break
            else:
                if parent is not None:
                    parent.end = len(elements)
                if not around:
                    break
                nodes, parent, level = around.pop()
        self._budget.spend(count)
        if not elements:
            raise InvalidRecording("A DOM snapshot has no element.")
        return elements

    def _follow_reference(self, reference: list[Any], level: int) -> tuple[Any, int]:
        """Return the node that a reference names, and the snapshot that holds it."""
        if len(reference) != 2 or type(reference[0]) is not int or type(reference[1]) is not int:
            raise InvalidRecording("A DOM snapshot has a reference other than [[k, n]].")
        back, number = reference
        if not 1 <= back <= MAX_BASES or level + back > MAX_BASES:
            raise InvalidRecording(f"A DOM snapshot refers to itself or back by more than {MAX_BASES}.")
        while len(self._chain) <= level + back:
            self._chain.append(self._read_base_snapshot(self._chain[-1]))
        level += back
        nodes = self._nodes.get(level)
        if nodes is None:
            nodes = self._nodes[level] = self._list_post_order(self._chain[level].get("html"))
        if not 0 <= number < len(nodes):
            raise InvalidRecording("A DOM snapshot refers to a node that its base does not have.")
        return nodes[number], level

    def _read_base_snapshot(self, snapshot: Mapping[str, Any]) -> Mapping[str, Any]:
        base = snapshot.get("base")
        if type(base) is not str or base in self._seen:
            raise InvalidRecording("A DOM snapshot refers to a base that is missing or cyclic.")
        self._seen.add(base)
        snapshot_of_base = self._read(base)
        if not isinstance(snapshot_of_base, Mapping) or snapshot_of_base.get("format") != "nodes":
            raise InvalidRecording("A DOM snapshot refers to a base that has no snapshot.")
        return snapshot_of_base

    def _list_post_order(self, root: Any) -> list[Any]:
        nodes: list[Any] = []
        stack: list[tuple[Any, bool]] = [(root, False)]
        visits = 0
        while stack:
            node, is_done = stack.pop()
            visits += 1
            if visits > 3 * MAX_NODES:
                raise InvalidRecording(f"A DOM snapshot has more than {MAX_NODES:,} nodes.")
            if type(node) is str or is_done:
                nodes.append(node)
            elif type(node) is list and node and type(node[0]) is str:
                stack.append((node, True))
                first = 2 if len(node) > 1 and type(node[1]) is dict else 1
                stack.extend([(child, False) for child in node[: first - 1 : -1]])
        self._budget.spend(visits)
        return nodes


def _is_dom_shadow_root(element: DomElement) -> bool:
    return element.tag == "template" and "shadowrootmode" in element.attrs


def find_shadow_root(element: DomElement) -> DomElement | None:
    """Return the shadow root of an element, or None."""
    for child in element.list_elements():
        if _is_dom_shadow_root(child):
            return child
    return None


def walk_ancestors(element: DomElement) -> Iterator[DomElement]:
    """Yield the elements around this one in the same document or shadow root, the nearest first."""
    parent = element.parent
    while parent is not None and not _is_dom_shadow_root(parent):
        yield parent
        parent = parent.parent
