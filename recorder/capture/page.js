// Snapshot of a page: first part of the page script, a function body that actions.js continues.
//
// The script runs in a JavaScript world of its own: it shares the DOM with the page, but the page can neither
// see it nor change the objects that it uses. Values of secret fields and everything below `data-mask` stay in
// the page; the recorder finds the values in addresses and dialogs by their digests.
const MAX_NODES = 20_000, MAX_CHARACTERS = 1_000_000, MAX_MS = 1_000, MAX_DEPTH = 56, MAX_WALK = 400;
const MAX_TEXT = 5_000, MAX_ATTRIBUTE = 500, MAX_ADDRESS = 2_000, MAX_ATTRIBUTES = 40, MAX_VALUE = 10_000;
const MAX_BOXES = 100, MAX_SEARCHED = 200_000, MAX_FIELDS = 2_000, MAX_SECRETS = 50, MAX_SECRET = 500, LEAST_SECRET = 4;
const HIDDEN_TEXT = "•••";
const SKIPPED = new Set(["base", "embed", "link", "meta", "noscript", "object", "param", "script", "source",
  "style", "template", "track"]);
// Never rendered, but read; an area is where its image shows it.
const UNMARKED = new Set(["area", "head", "html", "optgroup", "option", "title"]);
const ADDRESSES = new Set(["action", "cite", "formaction", "href", "poster", "src"]);
const DROPPED = new Set(["integrity", "nonce", "ping", "srcdoc", "srcset", "value"]);
const KEPT_UNDER_MASK = new Set(["class", "disabled", "for", "id", "name", "role", "type", "aria-disabled"]);
const SECRET_USES = /(?:^|\s)(?:current-password|new-password|one-time-code|cc-(?:number|csc|exp)\S*)(?:\s|$)/;
const SECRET_NAMES = /passw(?:or)?d|passphrase|passcode|\bpwd|secret|\botp\b|cvv|cvc/i;
const SECRET_PARAMETER =
  /((?:[?&;#])[^=&;#]*(?:passw|passphrase|passcode|pwd|secret|token|otp|api[_-]?key|signature|code|pin)[^=&;#]*=)[^&;#]*/gi;
const TEXT_TYPES = new Set(["button", "checkbox", "color", "file", "hidden", "image", "radio", "range", "reset",
  "submit"]);
// A form's fields hide its properties of the same name, so properties are read by the prototypes' getters.
const getter = (owner, name) => {
  const get = Object.getOwnPropertyDescriptor(owner.prototype, name).get;
  return (object) => get.call(object);
};
const firstChild = getter(Node, "firstChild"), nextSibling = getter(Node, "nextSibling");
const nodeType = getter(Node, "nodeType"), parentNode = getter(Node, "parentNode");
const localName = getter(Element, "localName"), attributes = getter(Element, "attributes");
const shadowRoot = getter(Element, "shadowRoot"), ownerDocument = getter(Node, "ownerDocument");
const documentElement = getter(Document, "documentElement"), titleOf = getter(Document, "title");
const attribute = (element, name) => Element.prototype.getAttribute.call(element, name);
const has = (element, name) => Element.prototype.hasAttribute.call(element, name);
const closest = (element, selector) => Element.prototype.closest.call(element, selector);
const box = (element) => Element.prototype.getBoundingClientRect.call(element);
const all = (root, selector) => (nodeType(root) === 9 ? Document : nodeType(root) === 11 ? DocumentFragment : Element)
  .prototype.querySelectorAll.call(root, selector);

const documentId = Math.random().toString(36).slice(2, 12);
const secretFields = new WeakSet(), observed = new WeakSet();
// Secret values with their fields, the last value of each field, and the values, the longest first.
const secretValues = new Map(), lastValues = new WeakMap();
let longestFirst = [];
let mutations = 0, root = null;

function isSecret(element) {
  if (secretFields.has(element)) return true;
  const tag = localName(element);
  if (tag !== "input" && tag !== "textarea") return false;
  if (TEXT_TYPES.has((attribute(element, "type") || "").toLowerCase())) return false;
  const is = (tag === "input" && element.type === "password") ||
    SECRET_USES.test((attribute(element, "autocomplete") || "").toLowerCase()) ||
    SECRET_NAMES.test(`${attribute(element, "name") || ""} ${attribute(element, "id") || ""}`);
  if (is) secretFields.add(element);
  return is;
}
// A field stays secret when the page shows its value, and so do copies of the value in the page. What is typed on
// the way to a value is none, and is forgotten, unless the field lost the focus with it.
function keepSecret(element) {
  const value = (element.value || "").slice(0, MAX_SECRET), before = lastValues.get(element) ?? "";
  const isLonger = ([other, { field }]) => field === element && other !== before && other.startsWith(before);
  const passed = secretValues.get(before);
  if (value !== before && passed?.field === element && !passed.isFinal) {
    if (value.startsWith(before) || [...secretValues].some(isLonger)) secretValues.delete(before);
    else passed.isFinal = true;
  }
  lastValues.set(element, value);
  const isNew = value.length >= LEAST_SECRET && !secretValues.has(value);
  if (isNew) secretValues.set(value, { field: element, isFinal: false });
  if (secretValues.has(value) && !Element.prototype.matches.call(element, ":focus")) {
    secretValues.get(value).isFinal = true;
  }
  if (!isNew && value === before) return;
  if (secretValues.size > MAX_SECRETS) secretValues.delete(secretValues.keys().next().value);
  longestFirst = [...secretValues.keys()].sort((one, other) => other.length - one.length);
  sendSecrets();
}
// Digests of the values as they are and encoded: length, and two polynomials of the characters.
function digestsOf(values) {
  const written = (value) => [value, encodeURI(value), encodeURIComponent(value),
    encodeURIComponent(value).replaceAll("%20", "+")];
  const sum = (text, base) => [...text].reduce((all, character) =>
    (Math.imul(all, base) + character.codePointAt(0)) >>> 0, 0);
  const texts = new Set(values.map((value) => value.toWellFormed()).flatMap(written));
  return [...texts].map((text) => [[...text].length, sum(text, 31), sum(text, 1_000_003)]);
}
function clean(text, limit) {
  let result = String(text);
  for (const secret of longestFirst) {
    if (!result.includes(secret) && !result.includes(encodeURIComponent(secret))) continue;
    result = result.split(secret).join(HIDDEN_TEXT).split(encodeURIComponent(secret)).join(HIDDEN_TEXT);
  }
  return result.slice(0, limit).toWellFormed();
}
const isMask = (element) => has(element, "data-mask") && attribute(element, "data-mask") !== "false";
function isUnderMask(element) {
  for (let node = element; node; node = hostOf(node)) if (nodeType(node) === 1 && isMask(node)) return true;
  return false;
}
function hostOf(node) {
  const parent = parentNode(node);
  if (parent) return parent;
  if (nodeType(node) === 11) return node.host;
  try { return node.defaultView?.frameElement ?? null; } catch { return null; }
}

// ---- Boxes: rectangles that a picture of the viewport must not show.
// Returns masked elements and secret fields, also those that a snapshot leaves out; null if the page is too large.
function findMasked() {
  const found = [], roots = [document];
  let left = MAX_SEARCHED;
  // Grows while it is read.
  for (const root of roots) {
    for (const element of all(root, "*")) {
      if (left-- === 0) return null;
      if (isMask(element) || isSecret(element)) found.push(element);
      const tag = localName(element), shadow = shadowRoot(element);
      if (shadow) roots.push(shadow);
      const inner = tag === "iframe" || tag === "frame" ? documentIn(element) : null;
      if (inner) roots.push(inner);
    }
  }
  return found;
}
// An element without a size of its own may show its content all the same.
function shownArea(element) {
  const own = box(element);
  if (own.width >= 1 && own.height >= 1) return own;
  const { display, overflow } = getComputedStyle(element);
  if (display !== "contents" && overflow !== "visible") return own;
  const content = new Range();
  content.selectNodeContents(element);
  return content.getBoundingClientRect();
}
// Returns the whole viewport where the elements are unknown or too many.
function boxesOf(masked) {
  const boxes = [], whole = [[0, 0, innerWidth, innerHeight]];
  if (masked === null) return whole;
  for (const element of masked) {
    if (!isMask(element) && !element.value) continue;
    const [left, top, width, height] = moveToViewport(element, shownArea(element));
    if (width <= 0 || height <= 0 || left >= innerWidth || top >= innerHeight) continue;
    if (left + width <= 0 || top + height <= 0) continue;
    const isInside = ([x, y, w, h]) => x <= left && y <= top && x + w >= left + width && y + h >= top + height;
    if (boxes.some(isInside)) continue;
    if (boxes.length === MAX_BOXES) return whole;
    boxes.push([left, top, width, height]);
  }
  return boxes;
}

// ---- Snapshots: [tag, {attributes}, …children], with the elements in document order.
class Snapshot {
  constructor() {
    this.elements = [];
    this.index = new WeakMap();
    this.masked = findMasked();
    this.boxes = boxesOf(this.masked);
    // Frames with the documents that they show.
    this.frames = [];
    this.nodes = 0;
    this.characters = 0;
    this.truncated = false;
    this.until = performance.now() + MAX_MS;
    for (const element of all(document, "input,textarea")) if (isSecret(element)) keepSecret(element);
    const holder = [];
    const root = documentElement(document);
    if (root) this.add(root, holder, 0, 0, false);
    this.html = holder[0] ?? ["html", {}];
  }

  count(characters) {
    this.nodes += 1;
    this.characters += characters;
    if (this.nodes > MAX_NODES || this.characters > MAX_CHARACTERS) this.truncated = true;
    if (this.nodes % 256 === 0 && performance.now() > this.until) this.truncated = true;
    return !this.truncated;
  }

  // Adds an element to the list `into`; returns whether nothing of it is visible.
  add(element, into, depth, walk, masked) {
    const tag = localName(element);
    if (SKIPPED.has(tag) || walk > MAX_WALK || !this.count(20 + tag.length)) return true;
    const hides = masked || isMask(element);
    const attrs = this.readAttributes(element, tag, hides);
    const node = [tag, attrs];
    this.index.set(element, this.elements.length);
    this.elements.push(element);
    into.push(node);
    // Deeper elements become siblings: JSON of the service has 64 levels.
    const list = depth < MAX_DEPTH ? node : into;
    const below = depth < MAX_DEPTH ? depth + 1 : depth;
    const isShown = isRendered(element);
    let isEmpty = true;
    if (tag === "iframe" || tag === "frame") {
      const inner = documentIn(element);
      this.frames.push([element, inner]);
      // A document that is just being loaded has no element yet.
      if (inner) observe(inner);
      const root = inner && documentElement(inner);
      if (root) {
        isEmpty = this.add(root, list, below, walk + 1, hides);
      }
    } else if (tag !== "svg" && tag !== "textarea") {
      const shadow = shadowRoot(element);
      if (shadow && depth < MAX_DEPTH - 1) {
        observe(shadow);
        const template = ["template", { shadowrootmode: "open" }];
        this.elements.push(shadow);
        list.push(template);
        isEmpty = this.addChildren(shadow, template, template, below + 1, walk + 1, hides, isShown);
      }
      isEmpty = this.addChildren(element, node, list, below, walk + 1, hides, isShown) && isEmpty;
    }
    // A hidden element may have visible children.
    const isHidden = isEmpty && !isShown;
    if (isHidden && !UNMARKED.has(tag)) attrs.__h = true;
    return isHidden;
  }

  // Returns whether no child is visible.
  addChildren(parent, texts, list, depth, walk, masked, isShown) {
    let isEmpty = true;
    for (let child = firstChild(parent); child && !this.truncated; child = nextSibling(child)) {
      const type = nodeType(child);
      if (type === 1) {
        if (!this.add(child, list, depth, walk, masked)) isEmpty = false;
      } else if (type === 3) {
        const text = child.data.slice(0, 4 * MAX_TEXT).replace(/\s+/g, " ");
        if (text === "" || text === " ") continue;
        if (isShown) isEmpty = false;
        const shown = masked ? HIDDEN_TEXT : clean(text, MAX_TEXT);
        if (this.count(shown.length)) texts.push(shown);
      }
    }
    return isEmpty;
  }

  readAttributes(element, tag, masked) {
    const attrs = {};
    let count = 0;
    for (const { name, value } of attributes(element)) {
      if (name.startsWith("on") || name.startsWith("__") || (DROPPED.has(name) && tag !== "option")) continue;
      if (masked && !KEPT_UNDER_MASK.has(name) && name !== "data-mask") continue;
      if (++count > MAX_ATTRIBUTES || name.length > 64) break;
      let kept = clean(value, ADDRESSES.has(name) ? MAX_ADDRESS : MAX_ATTRIBUTE);
      if (ADDRESSES.has(name)) {
        if (/^[\s\0-\x1f]*(?:javascript|vbscript)/i.test(kept.replace(/[\s\0-\x1f]/g, ""))) continue;
        if (/^\s*data:/i.test(kept)) kept = "data:";
        kept = kept.replace(SECRET_PARAMETER, `$1${HIDDEN_TEXT}`);
      }
      attrs[name] = kept;
      this.characters += name.length + kept.length + 6;
    }
    if (tag === "input" || tag === "textarea" || tag === "select") this.readField(element, tag, attrs, masked);
    if (tag === "option" && element.selected) attrs.__c = true;
    return attrs;
  }

  readField(element, tag, attrs, masked) {
    const type = tag === "input" ? element.type : tag;
    if (type === "checkbox" || type === "radio") {
      attrs.__c = element.checked;
      if (has(element, "value") && !masked) attrs.value = clean(attribute(element, "value"), MAX_ATTRIBUTE);
      return;
    }
    if (type === "hidden" || type === "file") return;
    const value = element.value;
    if (isSecret(element)) {
      attrs.__v = value ? "•" : "";
    } else {
      attrs.__v = masked ? (value ? HIDDEN_TEXT : "") : clean(value, MAX_TEXT);
      this.characters += attrs.__v.length;
    }
  }
}

// Returns null for a document of another origin.
function documentIn(frame) {
  try { return frame.contentDocument; } catch { return null; }
}
function isRendered(element) {
  if (element.checkVisibility({ visibilityProperty: true })) return true;
  return getComputedStyle(element).display === "contents";
}
// Rectangle in pixels of the main frame's viewport.
const rectOf = (element) => moveToViewport(element, box(element));
function moveToViewport(element, { x, y, width, height }) {
  let left = x, top = y;
  try {
    for (let view = ownerDocument(element).defaultView; view && view !== window; view = view.parent) {
      const outer = box(view.frameElement);
      left += outer.x + view.frameElement.clientLeft;
      top += outer.y + view.frameElement.clientTop;
    }
  } catch { /* a frame of another origin ends the way up */ }
  return [left, top, width, height].map((number) => Math.round(number));
}

// ---- Version: changes whenever a snapshot may differ from the one before.
const observer = new MutationObserver(count);
function count(records) {
  mutations += records.length;
  for (const { type, oldValue, attributeName, target } of records) {
    if (type === "attributes" && attributeName === "type" && oldValue === "password") secretFields.add(target);
  }
  // `document.open()` removes all listeners; adding one that is there has no effect.
  if (listenTo && root !== documentElement(document)) {
    root = documentElement(document);
    listenTo(document);
  }
  if (records.length) afterChange();
}
function observe(root) {
  if (observed.has(root)) return;
  observed.add(root);
  observer.observe(root, { attributes: true, attributeOldValue: true, childList: true, characterData: true,
    subtree: true });
  // Fields of the page's own document are read for each version.
  if (root !== document) {
    EventTarget.prototype.addEventListener.call(root, "input", countInput, { capture: true, passive: true });
  }
  if (listenTo && nodeType(root) === 9) listenTo(root);
}
function countInput() { mutations += 1; }
// A frame gets another document without a mutation around it.
function countDocuments() {
  for (const entry of last?.snapshot.frames ?? []) {
    const inner = documentIn(entry[0]);
    if (inner !== entry[1]) mutations += 1;
    entry[1] = inner;
  }
}
function version() {
  countDocuments();
  count(observer.takeRecords());
  let hash = 0;
  let left = MAX_FIELDS;
  for (const field of all(document, "input,select,textarea")) {
    if (left-- === 0) break;
    let text = `${field.value} ${field.checked}`;
    if (isSecret(field)) {
      keepSecret(field);
      text = field.value ? "•" : "";
    }
    for (let at = 0; at < text.length && at < 200; at += 1) hash = (hash * 31 + text.charCodeAt(at)) | 0;
    hash = (hash * 31 + text.length) | 0;
  }
  return `${documentId}.${mutations}.${hash}.${scrollX | 0}.${scrollY | 0}`;
}
function shownTitle() {
  const title = titleOf(document), element = all(document, "title")[0] ?? documentElement(document);
  return title && element && isUnderMask(element) ? HIDDEN_TEXT : clean(title, 300);
}
const place = () => ({
  url: clean(location.href, MAX_ADDRESS), title: shownTitle(), ready: document.readyState,
  viewport: [innerWidth, innerHeight], scale: devicePixelRatio,
});
const describe = (taken) => ({
  version: taken.version, html: taken.snapshot.html, boxes: taken.snapshot.boxes,
  truncated: taken.snapshot.truncated, ...taken.place,
});
function take() {
  const now = version();
  if (last === null || last.version !== now) last = { version: now, snapshot: new Snapshot(), place: place() };
  // Scrolling within an element, and animations, move elements without a new version.
  else last.snapshot.boxes = boxesOf(last.snapshot.masked);
  return last;
}
let last = null, known = "", listenTo = null, afterChange = () => {}, sendSecrets = () => {};
