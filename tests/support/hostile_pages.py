"""Pages of an allowed host that try to reach one that is not allowed. Contract §8."""

#: Name → body of the page. `{there}` is the forbidden server, `{secure}` the same one by TLS, `{here}` the
#: allowed one; its `/to?` redirects.
ESCAPES = {
    "link prefetch": '<link rel=prefetch href="{there}/link-prefetch">',
    "preconnect": '<link rel=preconnect href="{there}">',
    "image": '<img src="{there}/image">',
    "redirected image": '<img src="{here}/to?{there}/redirected-image">',
    "iframe": '<iframe src="{there}/iframe"></iframe>',
    "fetch": "<script>fetch('{there}/fetch', {mode: 'no-cors'})</script>",
    "redirected fetch": "<script>fetch('{here}/to?{there}/refetch', {mode: 'no-cors'})</script>",
    "beacon": "<script>navigator.sendBeacon('{there}/beacon', 'x')</script>",
    "websocket": "<script>new WebSocket('{there}/socket'.replace('http', 'ws'))</script>",
    "event source": "<script>new EventSource('{there}/events')</script>",
    "tunnel": '<img src="{secure}/tunnel">',
    "redirected tunnel": '<img src="{here}/to?{secure}/redirected-tunnel">',
    "secure websocket": "<script>new WebSocket('{secure}/socket'.replace('https', 'wss'))</script>",
    "worker": "<script>new Worker('{here}/worker.js')</script>",
    "service worker": "<script>navigator.serviceWorker.register('{here}/service.js')</script>",
    "popup": "<button id=go onclick=\"window.open('{there}/popup')\">Go</button>",
    "form": '<form id=f method=post action="{there}/form"></form><script>f.submit()</script>',
    "location": "<script>location = '{there}/location'</script>",
    "redirected location": "<script>location = '{here}/to?{there}/relocation'</script>",
    "meta refresh": '<meta http-equiv=refresh content="0;url={there}/refresh">',
    "style": "<style>@import '{there}/style';</style>",
    "object": '<object data="{there}/object"></object>',
    "download": '<a id=go download href="{there}/download">Go</a>',
    "script module": "<script type=module>import '{there}/module.js'</script>",
    "prefetch by header": "<p>The header asks for it.</p>",
    "stun": (
        "<script>const c = new RTCPeerConnection({iceServers: [{urls: 'stun:10.9.9.1:{port}'}]});"
        "c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o))</script>"
    ),
    "turn over tcp": (
        "<script>const c = new RTCPeerConnection({iceServers: [{urls: 'turn:10.9.9.1:{port}?transport=tcp',"
        "username: 'a', credential: 'b'}]});"
        "c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o))</script>"
    ),
}  # fmt: skip
#: Fields that the allowed server adds to a page.
HEADERS = {"prefetch by header": ("Link", "<{there}/header>; rel=prefetch")}
WORKER = "fetch('{there}/worker', {mode: 'no-cors'})"
SERVICE = "self.addEventListener('install', () => fetch('{there}/service', {mode: 'no-cors'}))"
#: Pages that reach no network, and what must not come of them.
OTHERS = {
    "file": '<iframe src="file:///etc/passwd"></iframe><script>location = "file:///etc/passwd"</script>',
    "print": "<script>print()</script>",
    "permission": (
        "<script>navigator.geolocation.getCurrentPosition(() => document.title = 'leaked')</script>"
    ),
}
#: Case of the corpus → spellings of hosts that must not be reached. Link-local addresses of IPv6 are left
#: out: a browser takes no zone. Multicast and broadcast addresses take no connection.
SPELLINGS = {
    59: (
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "localhost", "LOCALHOST", "api.localhost", "10.0.0.1",
        "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1", "192.0.0.8", "192.88.99.1",
        "192.0.2.1", "240.0.0.1",
    ),
    60: (
        "2130706433", "0x7f000001", "0x7f.0x0.0x0.0x1", "0x7f.1", "0177.0.0.1", "017700000001", "127.1",
        "127.0.1", "0", "0x0", "①②⑦.⓪.⓪.①", "127。0。0。1", "１２７.0.0.1", "127.0.0.1.", "localhost.",
        "ⓛocalhost", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "167772161", "0x64.0x40.0.1",
    ),
    61: (
        "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:10.0.0.1]",
        "[::ffff:169.254.169.254]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]", "[64:ff9b::7f00:1]",
        "[64:ff9b:1::1]", "[2002:7f00:1::]", "[2001::1]", "[2001:db8::1]", "[100::1]", "[fc00::1]",
        "[fec0::1]", "[3fff::1]", "[5f00::1]",
    ),
    62: ("169.254.169.254", "[fd00:ec2::254]", "100.100.100.200", "168.63.129.16"),
}  # fmt: skip
#: An address that counts as public; in the network of the tests it is this machine's too.
PUBLIC = "93.184.216.34"
#: One of the addresses below.
FORBIDDEN = "10.0.0.1"
#: Addresses of these hosts that a network must have before a browser without the sandbox reaches them.
ADDRESSES = (
    "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "198.18.0.1", "192.0.0.8",
    "192.88.99.1", "192.0.2.1", "240.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16",
    "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1",
    "2001:db8::1", "100::1", "fc00::1", "fec0::1", "3fff::1", "5f00::1", "fd00:ec2::254",
)  # fmt: skip
#: Names that lead to these addresses, and to those of loopback.
NAMES = {f"a{n}.forbidden.example": text for n, text in enumerate(("127.0.0.1", "::1", *ADDRESSES))}
#: Hosts of all cases, in the form that an address of a page has.
HOSTS = (*(host for hosts in SPELLINGS.values() for host in hosts), *NAMES)
#: Pages that ask for an image of some hosts each, all in all of every one; the path is its number. The proxy
#: takes no more connections at once than a page needs.
HOST_PAGES = {
    f"hosts from {first}": "".join(
        f"<img src='http://{host}:{{port}}/{n}'>"
        for n, host in enumerate(HOSTS[first : first + 20], start=first)
    )
    for first in range(0, len(HOSTS), 20)
}
#: Pages that make a browser ask a name server for `leak.example`.
LOOK_UPS = {
    "dns prefetch": "<link rel=dns-prefetch href='//leak.example'>",
    "stun by name": (
        "<script>const c = new RTCPeerConnection({iceServers: [{urls: 'stun:leak.example:{port}'}]});"
        "c.createDataChannel('x'); c.createOffer().then(o => c.setLocalDescription(o))</script>"
    ),
}
#: A page that asks its own host again and again, each time over another connection.
REBINDING = (
    "<title>loaded</title><script>let n = 0;"
    "setInterval(() => fetch('/rebound' + n++, {cache: 'no-store'}).catch(() => 0), 100)</script>"
)
