// Actions in a page: second part of the page script, after page.js. It reports what a person or a program does
// with the elements of the last snapshot, and offers the functions that page_reader.py calls.
const QUIET_MS = 150, LATEST_MS = 2_000, MESSAGES_PER_S = 50, DRAG_PIXELS = 8;
const CONTROLS = "a[href],button,input,select,textarea,summary,option,[role=button],[role=link],[role=tab]," +
  "[role=menuitem],[role=menuitemcheckbox],[role=menuitemradio],[role=option],[role=checkbox],[role=radio]," +
  "[role=switch],[role=treeitem]";
const KEYS = new Set(["Enter", "Escape", "Tab", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight", "PageUp",
  "PageDown", "Home", "End", "Delete", "Backspace", "F1", "F2", "F3", "F4", "F5", "F6", "F7", "F8", "F9", "F10",
  "F11", "F12"]);

let send = null, mark = null, edit = null, armed = false, enterInField = 0, sent = 0, second = 0;
// Element, place and page of the last press of a pointer; source of a drag that the browser does itself.
let pressed = null, grabbed = null, hasDragged = false;
// The first click of what may become a double click.
let clicked = null;

const settle = {
  timer: 0, until: 0,
  begin() { this.until = Date.now() + LATEST_MS; this.touch(); },
  touch() {
    if (!send || this.until === 0) return;
    clearTimeout(this.timer);
    const wait = Math.min(QUIET_MS, Math.max(0, this.until - Date.now()));
    this.timer = setTimeout(() => {
      if (document.readyState !== "complete" && Date.now() < this.until) return this.touch();
      this.until = 0;
      if (version() !== known) post({ kind: "settled" });
    }, wait);
  },
};

function post(message) {
  const now = Math.floor(Date.now() / 1000);
  if (now !== second) { second = now; sent = 0; }
  sent += 1;
  if (sent <= MESSAGES_PER_S) send(JSON.stringify(message));
}
function report(type, element, before, { time = Date.now(), input = {}, point, drop, again } = {}) {
  armed = false;
  let state = before ?? last ?? take();
  if (element && !state.snapshot.index.has(element)) state = take();
  let node = element;
  while (node && !state.snapshot.index.has(node)) node = hostOf(node);
  const message = {
    kind: "event", type, time, version: state.version,
    index: node ? state.snapshot.index.get(node) : -1, rect: element ? rectOf(element) : null, input,
    frames: element ? framesOf(element) : [],
  };
  if (point) message.input.point = point;
  if (again) message.again = true;
  if (drop && state.snapshot.index.has(drop)) {
    message.drop = { index: state.snapshot.index.get(drop), rect: rectOf(drop), frames: framesOf(drop) };
  }
  if (state.version !== known) { message.page = describe(state); known = state.version; }
  mark = null;
  post(message);
  settle.begin();
}
function pointOn(element, event) {
  const [left, top] = rectOf(element);
  const own = box(element);
  return [Math.round(left + event.clientX - own.x), Math.round(top + event.clientY - own.y)];
}
function reportDrag({ element, point, before }, drop, event) {
  commit();
  report("drag", element, before, { input: { to: pointOn(drop, event) }, point, drop });
  hasDragged = true;
}
// The pointer's element while a page drags another one under it; an element around the source is no drop target.
function findDrop(source, event) {
  return ownerDocument(source).elementsFromPoint(event.clientX, event.clientY)
    .find((element) => !element.contains(source) && !source.contains(element));
}
function framesOf(element) {
  const places = [];
  try {
    for (let view = ownerDocument(element).defaultView; view && view !== window; view = view.parent) {
      places.unshift([...all(view.parent.document, "iframe,frame")].indexOf(view.frameElement));
    }
  } catch { return []; }
  return places;
}
const targetOf = (event) => {
  const first = event.composedPath()[0] ?? event.target;
  return nodeType(first) === 1 ? first : documentElement(document);
};
const controlOf = (element) => closest(element, CONTROLS) ?? element;
const modifiersOf = (event) => event.altKey + 2 * event.ctrlKey + 4 * event.metaKey + 8 * event.shiftKey;
const isTextField = (element) => {
  const tag = localName(element);
  return tag === "textarea" || (tag === "input" && !TEXT_TYPES.has(element.type)) || element.isContentEditable;
};
const isChecked = (element) => localName(element) === "input" && /^(?:checkbox|radio)$/.test(element.type);
function valueOf(element) {
  if (isSecret(element)) { keepSecret(element); return { value: null, masked: true, secret: true }; }
  if (isUnderMask(element)) return { value: null, masked: true };
  if (localName(element) === "select" && element.multiple) {
    return { value: [...element.selectedOptions].slice(0, 100).map((option) => clean(option.value, 500)) };
  }
  const value = element.isContentEditable ? element.innerText : element.value;
  return { value: clean(value ?? "", MAX_VALUE) };
}
function commit() {
  if (!edit) return;
  const { element, before, time, input } = edit;
  edit = null;
  report("fill", element, before, { time, input });
}

const handlers = {
  pointerdown(event) {
    if (!event.isTrusted) return;
    const element = targetOf(event);
    if (edit && edit.element !== element) commit();
    mark = take();
    hasDragged = false;
    grabbed = null;
    const isDrag = event.button === 0 && event.isPrimary && !closest(element, "input,textarea,select,[contenteditable]");
    pressed = isDrag ? { element, point: pointOn(element, event), at: [event.clientX, event.clientY], before: mark } : null;
  },
  pointerup(event) {
    const began = pressed;
    pressed = null;
    if (!event.isTrusted || !began || event.button !== 0) return;
    const distance = Math.hypot(event.clientX - began.at[0], event.clientY - began.at[1]);
    // A press that changes nothing while it moves selects text, or drags nothing.
    if (distance < DRAG_PIXELS || version() === began.before.version || !getSelection().isCollapsed) return;
    const drop = findDrop(began.element, event);
    if (drop) reportDrag(began, drop, event);
  },
  dragstart(event) {
    const began = pressed;
    pressed = null;
    if (!event.isTrusted || !began || nodeType(event.target) !== 1) return;
    grabbed = { ...began, element: event.target };
  },
  drop(event) {
    if (event.isTrusted && grabbed) reportDrag(grabbed, targetOf(event), event);
    grabbed = null;
  },
  dragend() { grabbed = null; },
  beforeinput(event) { if (event.isTrusted && !edit) mark = take(); },
  click(event) {
    if (!event.isTrusted) return;
    if (hasDragged && event.detail > 0) return;
    const first = event.detail === 2 ? clicked : null;
    clicked = null;
    const element = targetOf(event);
    if (event.detail === 0 && Date.now() - enterInField < 100) return;
    const label = closest(element, "label");
    if (label && label.control && label.control !== closest(element, "button,a[href],input,select,textarea")) return;
    const control = controlOf(element);
    if (isChecked(control) || (localName(control) === "input" && control.type === "file")) return;
    if (localName(control) === "select" || localName(control) === "option") return;
    const isReported = !isTextField(control) || event.detail > 1;
    const modifiers = modifiersOf(event);
    if (event.detail === 1) clicked = { control, isReported, button: event.button, modifiers };
    if (!isReported) return;
    commit();
    // The first click may have changed what is below the pointer: then this is a click of its own.
    const isDouble = first?.control === control && first.button === event.button && first.modifiers === modifiers;
    report(isDouble ? "dblclick" : "click", control, mark, {
      input: { button: event.button, modifiers }, point: pointOn(control, event),
      again: isDouble && first.isReported,
    });
  },
  auxclick(event) { handlers.click(event); },
  keydown(event) {
    if (!event.isTrusted || event.isComposing) return;
    const element = targetOf(event);
    if (!edit) mark = take();
    const modifiers = modifiersOf(event);
    const isText = isTextField(element);
    const isShortcut = (modifiers & 7) !== 0 && event.key.length === 1 && !event.getModifierState("AltGraph");
    if (!isShortcut && !KEYS.has(event.key)) return;
    if (isText && /^(?:Backspace|Delete|Home|End|Arrow|Page)/.test(event.key)) return;
    if (event.key === "Enter") {
      if (isText && localName(element) === "input") enterInField = Date.now();
      else if (localName(element) === "textarea" || element.isContentEditable) return;
      else if (closest(element, "button,a[href],summary,[role=button]")) return;
    }
    if (localName(element) === "select" || isChecked(element)) return;
    commit();
    report("press", element, mark ?? take(), { input: { key: event.key.slice(0, 40), modifiers } });
  },
  input(event) {
    const element = targetOf(event);
    if (!(event.isTrusted || armed) || isChecked(element) || localName(element) === "select") return;
    const field = element.isContentEditable ? outermostEditable(element) : element;
    if (localName(field) === "input" && field.type === "file") return;
    if (edit && edit.element !== field) commit();
    edit ??= { element: field, before: mark ?? last ?? take() };
    edit.time = Date.now();
    edit.input = valueOf(field);
  },
  change(event) {
    const element = targetOf(event);
    if (edit && edit.element === element) return commit();
    if (!(event.isTrusted || armed)) return;
    const tag = localName(element);
    if (tag !== "select" && tag !== "input") return;
    commit();
    const before = mark ?? last;
    if (isChecked(element)) return report(element.checked ? "check" : "uncheck", element, before);
    if (tag === "select") return report("select", element, before, { input: valueOf(element) });
    if (element.type === "file") {
      const files = isUnderMask(element) ? [] : [...element.files].slice(0, 100).map((file) => clean(file.name, 255));
      report("upload", element, before, { input: { files } });
    }
  },
  focusout() { commit(); },
  load(event) {
    if (nodeType(event.target) !== 1 || localName(event.target) !== "iframe") return;
    mutations += 1;
    if (event.target.contentDocument) observe(event.target.contentDocument);
    settle.touch();
  },
};
function outermostEditable(element) {
  let node = element;
  while (parentNode(node) && parentNode(node).isContentEditable) node = parentNode(node);
  return node;
}

observe(document);
return {
  // Returns the page as JSON; `known` becomes its version.
  read() {
    const taken = take();
    known = taken.version;
    return JSON.stringify(describe(taken));
  },
  // Returns version and boxes as JSON, and lets the program's next action send events by script.
  arm() {
    commit();
    armed = true;
    mark = null;
    return JSON.stringify({ version: version(), ready: document.readyState });
  },
  check() { return JSON.stringify({ version: version(), ready: document.readyState }); },
  boxes() { return JSON.stringify(boxesOf(findMasked())); },
  flush() { commit(); return "null"; },
  // Sends events to `sink`, a function that takes a text.
  listen(sink) {
    if (send) return;
    send = sink;
    const listeners = Object.entries(handlers).map(([name, handle]) => [name, (event) => {
      if (!event.target) return;
      try { handle(event); } catch { post({ kind: "problem", where: name }); }
    }]);
    afterChange = () => settle.touch();
    // Addresses and dialogs, in which the page may show them, do not come from this script.
    sendSecrets = () => send(JSON.stringify({ kind: "secrets", document: documentId, digests: digestsOf(longestFirst) }));
    // At the window, and before the page's scripts: a listener of the page cannot stop what comes first. None listens
    // to "pagehide": its message would come too late, and Chromium then forgets now and then to close the page.
    listenTo = (place) => {
      for (const [name, listener] of listeners) {
        const target = name === "load" ? place : place.defaultView ?? place;
        EventTarget.prototype.addEventListener.call(target, name, listener, { capture: true, passive: true });
      }
    };
    listenTo(document);
    settle.begin();
  },
};
