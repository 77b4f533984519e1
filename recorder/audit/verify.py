"""Verification of audit chains: changed, missing and reordered entries. Contract §7 (audit).

A chain alone shows changes, not truncation: a person who can write to the database can delete its last
entries and move the head back. The operator therefore keeps heads outside (`recorder audit head`), and
`verify --head` checks that the chains still contain them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, NamedTuple

from sqlmodel import Session as DbSession
from sqlmodel import col, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder.audit.log import audit_entry_of, first_audit_hash, hash_audit_entry
from recorder.models.governance import AuditHashRow
from recorder.models.operations import AuditHeadRow, AuditRow
from recorder.models.workspace import WorkspaceRow
from recorder.storage.database import Database

BreakKind = Literal["changed", "missing", "reordered"]

_PAGE_ROWS = 500
_MOST_BREAKS = 100


@dataclass(frozen=True)
class ChainHead:
    """The end of a workspace's chain: number and hash of the last entry."""

    workspace_id: str
    number: int
    hash: str


@dataclass(frozen=True)
class ChainBreak:
    """Break of a chain at one entry."""

    number: int
    kind: BreakKind
    detail: str


@dataclass
class ChainReport:
    """Result for one chain, with at most 100 breaks."""

    workspace_id: str
    entries: int
    breaks: list[ChainBreak] = field(default_factory=list)

    @property
    def is_valid(self) -> bool:
        """Return whether every entry is as it was written."""
        return not self.breaks


@dataclass
class AuditReport:
    """Results for all chains, and the outside heads that none of them contains."""

    chains: list[ChainReport]
    lost_heads: list[str]

    @property
    def is_valid(self) -> bool:
        """Return whether all chains are unbroken and contain all outside heads."""
        return not self.lost_heads and all(chain.is_valid for chain in self.chains)


def read_chain_heads(database: Database, workspace_id: str | None = None) -> list[ChainHead]:
    """Return the heads of all chains, or of one, for the operator to keep outside."""
    statement = select(AuditHeadRow).order_by(col(AuditHeadRow.workspace_id))
    if workspace_id is not None:
        statement = statement.where(AuditHeadRow.workspace_id == workspace_id)
    with database.transaction(write=False) as db:
        return [ChainHead(row.workspace_id, row.number, row.hash) for row in db.exec(statement)]


def verify_audit(
    database: Database, *, workspace_id: str | None = None, heads: Iterable[str] = ()
) -> AuditReport:
    """Verify the chains of all workspaces, or of one.

    Args:
        database: the deployment's database.
        workspace_id: workspace to verify; None verifies all.
        heads: hashes that were heads once; each must still be in one of the chains.
    """
    with database.transaction(write=False) as db:
        workspace_ids = [workspace_id] if workspace_id is not None else _list_audited_workspaces(db)
    return AuditReport(
        chains=[_verify_audit_chain(database, each_id) for each_id in workspace_ids],
        lost_heads=[head for head in heads if not _contains_head(database, workspace_ids, head)],
    )


def _list_audited_workspaces(db: DbSession) -> list[str]:
    """Return the workspaces that have a chain or must have one: its first entry is their creation."""
    with_chain = set(db.exec(select(AuditHeadRow.workspace_id)))
    with_chain |= set(db.exec(select(AuditRow.workspace_id).distinct()))
    return sorted(with_chain | set(db.exec(select(WorkspaceRow.id))))


def _contains_head(database: Database, workspaces: list[str], head: str) -> bool:
    """Return whether any of these workspaces' audit chains has an entry with this hash, pruned or not."""
    with database.transaction(write=False) as db:
        rows = db.exec(select(AuditRow.workspace_id).where(AuditRow.hash == head)).all()
        pruned = db.exec(select(AuditHashRow.workspace_id).where(AuditHashRow.hash == head)).all()
        return not {*rows, *pruned}.isdisjoint(workspaces)


def _verify_audit_chain(database: Database, workspace_id: str) -> ChainReport:
    # One snapshot: entries that are added during the verification come after its head.
    with database.transaction(write=False) as db:
        report = ChainReport(workspace_id, entries=0)
        for broken in _find_chain_breaks(db, report):
            if len(report.breaks) < _MOST_BREAKS:
                report.breaks.append(broken)
    return report


def _find_chain_breaks(db: DbSession, report: ChainReport) -> Iterator[ChainBreak]:
    number, last_hash = 0, first_audit_hash(report.workspace_id)
    unproved = _find_unproved_pruning(db, report.workspace_id)
    if unproved is not None:
        yield unproved
    for entry in chain(
        _read_pruned_chain_entries(db, report.workspace_id), _read_chain_entries(db, report.workspace_id)
    ):
        report.entries += 1
        if entry.number > number + 1:
            yield ChainBreak(number + 1, "missing", f"entries {number + 1} to {entry.number - 1} are gone")
        elif entry.prev_hash != last_hash:
            yield _describe_unlinked(db, report.workspace_id, entry)
        if entry.computed != entry.hash:
            yield ChainBreak(entry.number, "changed", "its content does not give its hash")
        number, last_hash = entry.number, entry.hash
    head = db.get(AuditHeadRow, report.workspace_id)
    if head is None or (head.number, head.hash) != (number, last_hash):
        yield _describe_head_break(head, number)


def _find_unproved_pruning(db: DbSession, workspace_id: str) -> ChainBreak | None:
    """Return the break of a chain whose pruned entries go further than its last `audit.prune` says."""
    of_workspace = select(AuditHashRow.number).where(AuditHashRow.workspace_id == workspace_id)
    last = db.exec(of_workspace.order_by(col(AuditHashRow.number).desc()).limit(1)).first()
    if last is None:
        return None
    prunes = select(AuditRow.details).where(
        AuditRow.workspace_id == workspace_id, AuditRow.action == "audit.prune"
    )
    details = db.exec(prunes.order_by(col(AuditRow.number).desc()).limit(1)).first()
    if details is not None and details.get("through") == last:
        return None
    return ChainBreak(last, "changed", "no audit.prune entry says that entries up to here were pruned")


def _describe_unlinked(db: DbSession, workspace_id: str, entry: "_Entry") -> ChainBreak:
    """Return the break at an entry that does not follow the one before it."""
    elsewhere = select(AuditRow.number).where(
        AuditRow.workspace_id == workspace_id, AuditRow.hash == entry.prev_hash
    )
    if entry.prev_hash == first_audit_hash(workspace_id) or db.exec(elsewhere).first() is not None:
        return ChainBreak(entry.number, "reordered", "the entry before it is elsewhere in the chain")
    return ChainBreak(entry.number, "missing", "the entry before it is gone or was replaced")


def _describe_head_break(head: AuditHeadRow | None, number: int) -> ChainBreak:
    if head is None and number == 0:
        return ChainBreak(1, "missing", "all entries and the head of the chain are gone")
    if head is None:
        return ChainBreak(number, "missing", "the head of the chain is gone")
    if head.number > number:
        return ChainBreak(number + 1, "missing", f"entries {number + 1} to {head.number} are gone")
    return ChainBreak(number, "changed", "the head is not the last entry's")


class _Entry(NamedTuple):
    number: int
    prev_hash: str
    hash: str
    #: Hash of the content; None where the content cannot be read.
    computed: str | None


def _read_pruned_chain_entries(db: DbSession, workspace_id: str) -> Iterator[_Entry]:
    """Yield the pruned entries of a chain, which have no content to check."""
    number = 0
    row = AuditHashRow
    while True:
        statement = select(row).where(row.workspace_id == workspace_id, col(row.number) > number)
        page = db.exec(statement.order_by(col(row.number)).limit(_PAGE_ROWS)).all()
        for pruned in page:
            yield _Entry(pruned.number, pruned.prev_hash, pruned.hash, pruned.hash)
        if len(page) < _PAGE_ROWS:
            return
        number = page[-1].number


def _read_chain_entries(db: DbSession, workspace_id: str) -> Iterator[_Entry]:
    """Yield a chain by number, with a few hundred entries in memory."""
    number = 0
    while True:
        try:
            page = [
                _Entry(row.number, row.prev_hash, row.hash, hash_audit_entry(audit_entry_of(row)))
                for row in db.exec(_select_chain_rows(workspace_id, number).limit(_PAGE_ROWS))
            ]
        except ValueError:  # A stored time or JSON text is malformed.
            page = _read_chain_entries_singly(db, workspace_id, number)
        yield from page
        if len(page) < _PAGE_ROWS:
            return
        number = page[-1].number


def _read_chain_entries_singly(db: DbSession, workspace_id: str, after: int) -> list[_Entry]:
    links = select(AuditRow.number, AuditRow.prev_hash, AuditRow.hash)
    links = links.where(AuditRow.workspace_id == workspace_id, col(AuditRow.number) > after)
    page = []
    for number, prev_hash, stored in db.exec(links.order_by(col(AuditRow.number)).limit(_PAGE_ROWS)):
        try:
            row = db.exec(_select_chain_rows(workspace_id, number - 1).limit(1)).one()
            page.append(_Entry(number, prev_hash, stored, hash_audit_entry(audit_entry_of(row))))
        except ValueError:
            page.append(_Entry(number, prev_hash, stored, None))
    return page


def _select_chain_rows(workspace_id: str, after: int) -> SelectOfScalar[AuditRow]:
    statement = select(AuditRow).where(AuditRow.workspace_id == workspace_id, col(AuditRow.number) > after)
    return statement.order_by(col(AuditRow.number))
