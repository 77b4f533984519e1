// Reads the page as nodes `[tag, {attributes}, …children]` in document order, and keeps the element of each.
() => {
  const LEFT_OUT = new Set(["SCRIPT", "NOSCRIPT", "STYLE", "LINK", "META", "BASE"]);
  const MOST_NODES = 50000, MOST_DEPTH = 400, MOST_CHARACTERS = 10000;
  const elements = [], nodes = [];
  let count = 0;

  const isHidden = (element) => {
    if (element.checkVisibility) {
      return !element.checkVisibility({ visibilityProperty: true }) && element.tagName !== "OPTION";
    }
    return false;
  };

  const readAttributes = (element) => {
    const attributes = {};
    for (const { name, value } of element.attributes) {
      if (!name.startsWith("on") && !name.startsWith("__") && name !== "style" && name !== "srcdoc" &&
          name !== "nonce" && name !== "value") {
        attributes[name] = value.slice(0, 1000);
      }
    }
    if (element.hasAttribute("value") && element.type !== "password") {
      attributes.value = element.getAttribute("value").slice(0, 1000);
    }
    if (["INPUT", "TEXTAREA", "SELECT"].includes(element.tagName)) {
      const isSecret = element.type === "password";
      if (element.value) attributes.__v = isSecret ? "•" : String(element.value).slice(0, 1000);
      if (element.checked) attributes.__c = true;
    }
    if (element !== document.documentElement && isHidden(element)) attributes.__h = true;
    return attributes;
  };

  const readChildren = (parent, node, depth, keeps) => {
    for (const child of parent.childNodes) {
      if (count > MOST_NODES) return;
      if (child.nodeType === Node.TEXT_NODE) {
        count += 1;
        if (child.data) node.push(child.data.slice(0, MOST_CHARACTERS));
      } else if (child.nodeType === Node.ELEMENT_NODE && !LEFT_OUT.has(child.tagName.toUpperCase()) &&
                 depth < MOST_DEPTH) {
        node.push(readElement(child, depth + 1, keeps));
      }
    }
  };

  const readElement = (element, depth, keeps) => {
    const node = [element.tagName.toLowerCase(), readAttributes(element)];
    count += 1;
    if (keeps) { elements.push(element); nodes.push(node); }
    if (element.shadowRoot) {
      const root = ["template", { shadowrootmode: "open" }];
      if (keeps) { elements.push(element); nodes.push(root); }
      readChildren(element.shadowRoot, root, depth + 1, keeps);
      node.push(root);
    }
    if (element.tagName !== "TEMPLATE") readChildren(element, node, depth, keeps);
    return node;
  };

  const html = readElement(document.documentElement, 0, true);
  return {
    read: { html, url: location.href, title: document.title },
    element: (index) => elements[index],
    isUnchanged: (index) => {
      count = 0;
      return elements[index].isConnected &&
        JSON.stringify(readElement(elements[index], 0, false)) === JSON.stringify(nodes[index]);
    },
  };
}
