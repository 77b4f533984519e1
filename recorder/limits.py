"""Limits: the numbers that bound requests, sessions and exports. Spec §8, contract §2–§5."""

EVENTS_PER_BATCH = 100
FRAMES_PER_BATCH = 50
BATCH_STOP_IDS = 500
METADATA_BYTES = 16_384
TAG_DATA_BYTES = 4_096
TAG_NAME_CHARACTERS = 128
#: Tags of a session: with the largest data 40 MB.
TAGS_PER_SESSION = 10_000
KEY_LABEL_CHARACTERS = 128
#: Valid keys of a workspace and mode.
KEYS_PER_WORKSPACE = 1_000
DESCRIPTION_CHARACTERS = 512
EVENT_BYTES = 65_536
#: Largest `t_ms`, about 31 years: start and time together must stay an instant that every store can hold.
T_MS_MAX = 10**12
FRAME_BYTES = 10 * 1024 * 1024
FRAME_PIXELS = 50_000_000
DOM_BYTES = 4 * 1024 * 1024
#: Of a frame's address and masked rectangles together.
FRAME_MEMBERS_BYTES = 256 * 1024
#: Commas of a JSON body beside events and frames. A valid one has 10,000 (excluded sessions); somewhat more
#: are still read, so that too many ids are answered as such.
BODY_COMMAS = 120_000
#: Opening brackets of such a body over 256 KB, which the event loop parses once a worker process has checked
#: it. Lists and objects take ten times as long as other values.
BODY_CONTAINERS = 40_000
FRAMES_REQUEST_BYTES = 64 * 1024 * 1024
EVENTS_REQUEST_BYTES = EVENTS_PER_BATCH * EVENT_BYTES + 65_536
BODY_BYTES = 1024 * 1024
#: Memory of all request bodies under way in a process, where the settings name no other.
BODY_MEMORY_BYTES = 512 * 1024 * 1024
EMBEDDED_EVENTS = 1_000
JSON_DEPTH = 64
#: A request's head arrives within this; slower clients are cut off.
REQUEST_HEAD_SECONDS = 10
REQUEST_HEAD_BYTES = 65_536
#: Each header takes 200 bytes beside its own; WebSocket handshakes have the same limit.
REQUEST_HEADERS = 128
#: Values of all headers of one name, and path and query.
REQUEST_HEADER_BYTES = 8_192
REQUEST_ADDRESS_BYTES = 16_384
#: Parameters of a query, of which only `workflow` and `type` repeat.
QUERY_PARAMETERS = 500
#: Heads that are still arriving, of all connections to a process together.
ARRIVING_HEADS_BYTES = 64 * 1024 * 1024
#: Answers that were written to connections, and that their clients have not read yet.
UNREAD_ANSWERS_BYTES = 256 * 1024 * 1024
#: A body arrives within this, or at this rate: in each such time so many bytes for each second.
REQUEST_BODY_SECONDS = 30
REQUEST_BODY_BYTES_PER_SECOND = 32_000
#: A client that reads nothing of its answer for so long is cut off; a data loader pauses within a file.
ANSWER_READ_SECONDS = 120
#: The rest of a refused body is dropped as it arrives, so that its client can read the answer: so many bytes
#: of a connection (the largest body with its framing), so many a second of all connections together.
LINGERING_BYTES = 65 * 1024 * 1024
LINGERING_BYTES_PER_SECOND = 64 * 1024 * 1024
#: Connections that do so, for how long, and how long without a byte.
LINGERING_CONNECTIONS = 256
LINGERING_SECONDS = 30
LINGERING_SILENCE_SECONDS = 5
#: Connections that a client address may have open to an API process, unless the settings name another number.
CONNECTIONS_PER_ADDRESS = 1_000
#: Connections of all addresses. An idle one takes 7 to 9 kB of memory, one with the largest head 73 kB.
CONNECTIONS_PER_PROCESS = 8_000
ACTOR_ID_CHARACTERS = 256
#: Workflows of a workspace in both modes: each may have a masking policy and a graph.
WORKFLOWS_PER_WORKSPACE = 10_000
WORKFLOW_TAGS = 50
OUTCOME_NAMES = 100
LIVE_HOSTS = 100
LIVE_METHODS = 20
#: Of an address that a replay takes the place of.
ADDRESS_CHARACTERS = 2_048
#: Inputs of a replay, and the characters of a name and a value.
REPLAY_INPUTS = 100
REPLAY_INPUT_NAME_CHARACTERS = 256
REPLAY_INPUT_CHARACTERS = 4_096
#: Of an input that holds the stored state of a browser, or the contents of a file as a `data:` URL.
LARGE_INPUT_CHARACTERS = 262_144
SELECTOR_CHARACTERS = 2_048
#: Erasures of a workspace that have not ended. On PostgreSQL they wait for the rewrite of its tables, a day.
OPEN_ERASURES = 1_000
#: Replacements that the masking policies of a workspace have had: an erasure compares masked texts with them.
MASKING_REPLACEMENTS = 10_000
#: Replays of a workspace and mode that have not ended.
OPEN_REPLAYS = 10_000
#: Replays and recoveries are kept so long after their end.
REPLAY_DAYS = 90
WORKSPACE_NAME_CHARACTERS = 128
RETENTION_DAYS = (1, 3650)
BATCH_KEY_CHARACTERS = 255
#: Of `Idempotency-Key` and `idempotency_key`: visible ASCII characters.
IDEMPOTENCY_KEY_PATTERN = f"^[!-~]{{1,{BATCH_KEY_CHARACTERS}}}$"
MASKING_PATTERNS = 50
MASKING_PATTERN_CHARACTERS = 1_000
MASKING_REPLACEMENT_CHARACTERS = 100
#: States of all patterns together, which bound the cost of a byte.
MASKING_STATES = 2_000
#: RE2 instructions of all patterns: Unicode classes have a thousand each.
MASKING_INSTRUCTIONS = 20_000
#: CPU time that a pattern, and all patterns of a policy, may take for a megabyte of text when they are saved.
MASKING_MS_PER_MB = 250
MASKING_MS_PER_MB_TOGETHER = 500
#: A text in which a rule finds more is masked as a whole.
MASKING_HITS = 250
#: How much larger than its cap an item may get by masking.
MASKING_GROWTH = 4

LIST_DEFAULT = 100
LIST_MAX = 500
#: A page of a list, and the events of a session's `include`, end before so many bytes, after at least one
#: item: 500 of the largest events are 32 MB, 500 frames with the most rectangles 40 MB.
PAGE_BYTES = 4 * 1024 * 1024
#: Time of the database for a page: filters without an index may read everything that a workspace has.
LIST_SECONDS = 10.0
SIMILAR_DEFAULT = 10
#: Workflows of an export, each of which has files of its own.
EXPORT_WORKFLOWS = 500
#: Newest exports of a workspace and mode; a dataset without one of them has no partition in Dagster.
DATASET_EXPORTS = 10_000
#: Exports of a workspace, in both modes, that are queued or running.
OPEN_EXPORTS = 1_000
EXCLUDED_SESSIONS = 10_000
#: So many are shown wherever an export is; a longer list is shown by reading the export alone.
EXCLUDED_SESSIONS_SHOWN = 100
SIGNED_URL_SECONDS = (60, 604_800)
SIGNED_URL_DEFAULT_SECONDS = 86_400
HOSTED_EXPORT_DAYS = 30

#: MB of memory that the graph of one workflow takes, where the settings name no other.
GRAPH_MEMORY_MB = 200

STREAM_RESUME_MINUTES = 30
#: Sealing lanes of a workspace and mode, unless RECORDER_SEAL_SLOTS chooses another number.
SEAL_SLOTS = 8
#: Silence after which a stream carries a comment, and the pause after which a browser connects again.
STREAM_KEEP_ALIVE_S = 15
STREAM_RETRY_MS = 3000
#: Reads of whole sessions under way: of one key, of one workspace, in one process.
WHOLE_READS_PER_KEY = 8
WHOLE_READS_PER_WORKSPACE = 20
WHOLE_READS_PER_PROCESS = 24
#: A stop searches the events of its sessions for outcome marks: 18 MB took 0.12 s of CPU. Of stops whose
#: sessions together have more bytes of events than this, so many are under way at once.
LARGE_SEARCH_BYTES = 8_000_000
LARGE_SEARCHES_PER_WORKSPACE = 4
LARGE_SEARCHES_PER_PROCESS = 16
#: A client that takes no further portion (1,000 events or 512 KiB) within this is cut off.
WHOLE_READ_PATIENCE_S = 30
#: A stream that resumes further than this before its end counts as the read of a whole session.
WHOLE_READ_MESSAGES = 10_000
SOFT_DELETE_DAYS = 30
TEST_SESSION_DAYS = 7
IDEMPOTENCY_HOURS = 24
WEBHOOKS_PER_WORKSPACE = 100
#: Names of event types in one request; the catalogue has fewer.
WEBHOOK_EVENTS = 100
#: Attempts of a webhook that wait or are under way; beyond it events are skipped and counted.
PENDING_DELIVERIES = 10_000
WEBHOOK_SECRET_HOURS = 24
DELIVERY_DAYS = 30
#: Runs of Dagster, with their events and logs; the newest of each asset stay.
DAGSTER_DAYS = 30
FRAMES_RETENTION_DAYS = 90
EVENTS_RETENTION_DAYS = 548
AUDIT_RETENTION_DAYS = 548

WORKFLOW_PATTERN = r"^[a-z0-9_]{2,64}$"
MASKING_NAME_PATTERN = r"^[a-z][a-z0-9_]{0,31}$"
#: Types that one read of events may name.
EVENT_TYPES_WANTED = 50
#: Ids that clients may choose; `recorder.ids` checks them.
CLIENT_EVENT_ID_PATTERN = "^evt_[0-9A-Za-z]{1,40}$"
CLIENT_FRAME_ID_PATTERN = "^frm_[0-9A-Za-z]{1,40}$"
EVENT_TYPE_PATTERN = r"^[a-z][a-z0-9_.]{0,63}$"
IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp")
