"""``beam-agents store …``: what an operator does to a long-term store."""

from __future__ import annotations

import sys
import time
from pathlib import Path  # noqa: TC003 - Typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from beam_agents.cli.durations import parse_duration_ms, shown_duration
from beam_agents.cli.lines import row_line
from beam_agents.cli.store_check import check_store
from beam_agents.cli.store_copy import CopyTotals, compare, copy_rows
from beam_agents.cli.store_progress import counted
from beam_agents.cli.store_repair import plan_repair
from beam_agents.cli.store_session import ONE_ATTEMPT, complain, opened, read_uri, run_on_loop
from beam_agents.cli.store_text import cursor_of, given_bytes, place_of, shown_bytes, shown_size, shown_time
from beam_agents.cli.store_trim import TrimTotals, trim_rows
from beam_agents.cli.tables import columns, plain_console
from beam_agents.errors import StateUndecodable, StateVersionUnsupported
from beam_agents.memory.stores.contract import MAX_SEQ, decode_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.table import Table

    from beam_agents.cli.store_check import CheckStep
    from beam_agents.cli.store_copy import Comparison
    from beam_agents.cli.store_repair import RepairPlan
    from beam_agents.memory.stores.contract import MemoryRecord, RowId, StoreRow
    from beam_agents.memory.stores.uri import StoreUri

__all__ = ["store_app"]

_DEFAULT_BATCH: Final = 200
_MAX_BATCH: Final = 10_000

store_app = typer.Typer(
    help="Provision, check, copy, read, trim and repair a long-term store. "
    "A URI may be given as env:NAME, the environment's variable that holds it: so no password is in the list "
    "of processes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Uri: TypeAlias = Annotated[str, typer.Argument(metavar="URI", help="The store's URI, or env:NAME.")]
EntityText: TypeAlias = Annotated[
    str | None, typer.Option("--entity", metavar="TEXT", help="An entity key, as text.")
]
EntityBase64: TypeAlias = Annotated[
    str | None, typer.Option("--entity-base64", metavar="BASE64", help="An entity key that is no text.")
]
KeyText: TypeAlias = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="A row's key.")]
KeyBase64: TypeAlias = Annotated[
    str | None, typer.Option("--key-base64", metavar="BASE64", help="A row's key, in UTF-8 and base64.")
]
Batch: TypeAlias = Annotated[
    int, typer.Option(min=1, max=_MAX_BATCH, metavar="N", help="Rows that one call reads or writes.")
]


@store_app.command()
def provision(
    uri: Uri,
    *,
    print_plan: Annotated[
        bool, typer.Option("--print", help="Print what would be run, and change nothing.")
    ] = False,
) -> None:
    """Create the table, or what else a store needs, where it is missing. Safe to repeat.

    Exit codes: 0 done; 1 the store refused or failed; 2 wrong arguments.
    """
    parsed = read_uri(uri)

    async def provisioned() -> tuple[str, bool | None]:
        async with opened(parsed) as store:
            plan = store.admin.provision_plan()
            return plan, None if print_plan else await store.call(store.admin.provision())

    plan, created = run_on_loop(provisioned())
    if created:
        typer.echo(f"{parsed.redacted}: created what was missing of:")
    elif created is not None:
        typer.echo(f"{parsed.redacted}: nothing was missing")
    if created is not False:
        typer.echo(plan.rstrip("\n"))


@store_app.command()
def check(uri: Uri) -> None:
    """Connect, and take each step that the runtime and these commands take, with a row that is deleted again.

    Exit codes: 0 the store is fit for use; 1 it is not, and why; 2 wrong arguments.
    """
    parsed = read_uri(uri)

    async def checked() -> list[CheckStep]:
        async with opened(parsed, ONE_ATTEMPT) as store:
            return await check_store(store, _now_ms())

    steps = run_on_loop(checked())
    table = columns("step", "result", ">ms")
    for step in steps:
        table.add_row(step.name, "ok" if step.ok else "FAILED", f"{step.seconds * 1000:.1f}")
    _print(f"Check of {parsed.redacted}", table)
    for step in steps:
        if not step.ok:
            complain(f"{step.name}: {step.problem}")
    if not all(step.ok for step in steps):
        raise typer.Exit(1)


@store_app.command()
def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The URI to copy from, or env:NAME.")],
    destination: Annotated[
        str, typer.Argument(metavar="DESTINATION", help="The URI to copy to, or env:NAME.")
    ],
    *,
    entity: EntityText = None,
    entity_base64: EntityBase64 = None,
    batch: Batch = _DEFAULT_BATCH,
    after: Annotated[
        str | None,
        typer.Option(metavar="CURSOR", help="Go on after the place that an interrupted copy printed."),
    ] = None,
    verify: Annotated[
        bool, typer.Option(help="Read both stores again at the end, and compare all rows.")
    ] = True,
) -> None:
    """Copy rows as they are. A row that the destination has with a higher seq stays.

    Safe to repeat, whole or from a cursor, also while pipelines write.

    Exit codes: 0 all rows are there, or newer ones; 1 they are not, or a store failed; 2 wrong arguments;
    130 interrupted.
    """
    from_uri, to_uri = read_uri(source, "SOURCE"), read_uri(destination, "DESTINATION")
    if from_uri == to_uri:
        raise typer.BadParameter("it is the same store as SOURCE", param_hint="DESTINATION")
    entity_key = _given("--entity", entity, entity_base64)
    totals = CopyTotals(after=None if after is None else _place("--after", after))

    async def copied() -> Comparison | None:
        said = plain_console(stderr=True)
        async with opened(from_uri) as reading, opened(to_uri) as writing:
            with counted(said, "rows copied") as on_rows:
                await copy_rows(reading, writing, totals, entity_key=entity_key, batch=batch, on_rows=on_rows)
            if not verify:
                return None
            with counted(said, "rows compared") as on_rows:
                return await compare(reading, writing, entity_key=entity_key, batch=batch, on_rows=on_rows)

    try:
        found = run_on_loop(copied())
    except typer.Exit:
        if totals.after is not None:
            complain(f"rows dealt with: {totals.scanned:,}; go on with --after {cursor_of(totals.after)}")
        raise
    _print(f"Copy of {from_uri.redacted} to {to_uri.redacted}", _copy_table(totals, found))
    wrong = totals.too_large > 0
    _complain_of("rows that are too large for the destination", totals.too_large, totals.first_too_large)
    if found is not None and found.missing + found.different:
        wrong = True
        _complain_of(
            "rows that differ at the destination or are not there (were they written meanwhile, copy again)",
            found.missing + found.different,
            found.first_wrong,
        )
    if wrong:
        raise typer.Exit(1)


def _copy_table(totals: CopyTotals, found: Comparison | None) -> Table:
    table = _pairs()
    table.add_row("rows read", f"{totals.scanned:,}")
    table.add_row("bytes of their records", f"{totals.bytes:,}")
    table.add_row("rows written", f"{totals.applied:,}")
    table.add_row("rows that the destination has newer", f"{totals.stale:,}")
    table.add_row("rows too large for the destination", f"{totals.too_large:,}")
    if found is not None:
        table.add_row("compared: the same", f"{found.same:,}")
        table.add_row("compared: newer at the destination", f"{found.newer:,}")
        table.add_row("compared: missing", f"{found.missing:,}")
        table.add_row("compared: different", f"{found.different:,}")
    return table


def _complain_of(what: str, count: int, first: Sequence[RowId]) -> None:
    if count:
        names = ", ".join(_shown_row(each) for each in first)
        more = f" and {count - len(first):,} more" if count > len(first) else ""
        complain(f"{what}: {count:,}: {names}{more}")


def _shown_row(row_id: RowId) -> str:
    return f"{shown_bytes(row_id.key.encode())} of {shown_bytes(row_id.entity_key)}"


@store_app.command("ls")
def list_rows(
    uri: Uri,
    *,
    entity: EntityText = None,
    entity_base64: EntityBase64 = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="What keys begin with.")] = "",
    limit: Annotated[int, typer.Option(min=0, metavar="N", help="Rows to show; 0 for all.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """List rows: entity, key, size, seq and age; no values.

    Exit codes: 0 done; 1 the store failed; 2 wrong arguments.
    """
    parsed = read_uri(uri)
    entity_key = _given("--entity", entity, entity_base64)
    now_ms = _now_ms()
    table = columns("entity", "key", ">bytes", ">seq", ">age")

    def show(row: StoreRow) -> None:
        if as_json:
            typer.echo(row_line(row))
        else:
            age = shown_duration(now_ms - row.updated_at_ms)
            entity_shown, key_shown = shown_bytes(row.entity_key), shown_bytes(row.key.encode())
            table.add_row(entity_shown, key_shown, f"{len(row.rec):,}", str(row.seq), age)

    more = run_on_loop(_each(parsed, entity_key, prefix, limit, show))
    if not as_json:
        _print(f"Rows of {parsed.redacted}", table)
    if more:
        complain(f"there are more than {limit:,} rows; --limit shows more of them")


async def _each(
    uri: StoreUri, entity_key: bytes | None, prefix: str, limit: int, show: Callable[[StoreRow], None]
) -> bool:
    """Show rows up to a limit; tell whether there are more."""
    shown = 0
    # Rows are read with their values: no more of them than needed.
    batch = min(_DEFAULT_BATCH, limit + 1) if limit and not prefix else _DEFAULT_BATCH
    async with opened(uri) as store:
        async for rows in store.pages(batch, entity_key):
            for row in rows:
                if not row.key.startswith(prefix):
                    continue
                if limit and shown == limit:
                    return True
                show(row)
                shown += 1
    return False


@store_app.command()
def get(
    uri: Uri,
    *,
    entity: EntityText = None,
    entity_base64: EntityBase64 = None,
    key: KeyText = None,
    key_base64: KeyBase64 = None,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show the value: as text, or as base64:…")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the value's bytes to a file; - for standard output, and nothing else."
        ),
    ] = None,
) -> None:
    """Show a row: what is known of it, and its value only if asked for.

    Exit codes: 0 done; 1 there is no such row, its record does not decode, or the store failed; 2 wrong
    arguments.
    """
    parsed = read_uri(uri)
    entity_key = _needed("--entity", entity, entity_base64)
    row_key = _row_key(key, key_base64)

    async def loaded() -> StoreRow | None:
        async with opened(parsed) as store:
            return await store.call(store.store.load(entity_key, row_key))

    row = run_on_loop(loaded())
    if row is None:
        complain(f"{parsed.redacted} has no such row")
        raise typer.Exit(1)
    try:
        record = decode_record(row)
    except (StateUndecodable, StateVersionUnsupported) as error:
        _print(f"Row of {parsed.redacted}", _row_table(row, None, show_value=False))
        complain(str(error))
        raise typer.Exit(1) from error
    if out is not None and str(out) == "-":
        sys.stdout.buffer.write(record.value)
        sys.stdout.flush()
        return
    _print(f"Row of {parsed.redacted}", _row_table(row, record, show_value=show_values))
    if out is not None:
        try:
            out.write_bytes(record.value)
        except OSError as error:
            raise typer.BadParameter(f"{str(out)!r}: {error.strerror}", param_hint="--out") from error


def _row_table(row: StoreRow, record: MemoryRecord | None, *, show_value: bool) -> Table:
    table = _pairs()
    table.add_row("entity", shown_bytes(row.entity_key))
    table.add_row("key", shown_bytes(row.key.encode()))
    table.add_row("seq", str(row.seq))
    age = shown_duration(_now_ms() - row.updated_at_ms)
    table.add_row("updated at", f"{shown_time(row.updated_at_ms)} (age {age})")
    table.add_row("bytes of the record", f"{len(row.rec):,}")
    if record is not None:
        table.add_row("bytes of the value", f"{len(record.value):,}")
        if show_value:
            table.add_row("value", shown_bytes(record.value))
    return table


@store_app.command()
def trim(
    uri: Uri,
    *,
    older_than: Annotated[
        str, typer.Option(metavar="DURATION", help="How long ago a row was last written: 90d, 12h.")
    ],
    entity: EntityText = None,
    entity_base64: EntityBase64 = None,
    dry_run: Annotated[bool, typer.Option(help="Count, and delete nothing.")] = True,
    batch: Batch = _DEFAULT_BATCH,
) -> None:
    """Delete rows that were last written long ago. A dry run, without --no-dry-run.

    A row that is written meanwhile stays.

    Exit codes: 0 done; 1 the store failed; 2 wrong arguments; 130 interrupted.
    """
    parsed = read_uri(uri)
    entity_key = _given("--entity", entity, entity_base64)
    try:
        before_ms = _now_ms() - parse_duration_ms(older_than)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--older-than") from error
    totals = TrimTotals()

    async def trimmed() -> None:
        async with opened(parsed) as store:
            with counted(plain_console(stderr=True), "rows read") as on_rows:
                await trim_rows(
                    store,
                    totals,
                    before_ms=before_ms,
                    entity_key=entity_key,
                    batch=batch,
                    dry_run=dry_run,
                    on_rows=on_rows,
                )

    title = f"{'Dry run of a trim' if dry_run else 'Trim'} of {parsed.redacted}"
    try:
        run_on_loop(trimmed())
    except typer.Exit:
        if totals.scanned:
            _print(title, _trim_table(totals, before_ms, dry_run=dry_run))
        raise
    _print(title, _trim_table(totals, before_ms, dry_run=dry_run))
    if dry_run and totals.old:
        typer.echo("nothing was deleted; --no-dry-run deletes")


def _trim_table(totals: TrimTotals, before_ms: int, *, dry_run: bool) -> Table:
    table = _pairs()
    table.add_row("rows read", f"{totals.scanned:,}")
    table.add_row(f"rows last written before {shown_time(before_ms)}", f"{totals.old:,}")
    table.add_row("bytes of their records", f"{totals.old_bytes:,} ({shown_size(totals.old_bytes)})")
    table.add_row("rows deleted", f"{totals.deleted:,}")
    if not dry_run:
        table.add_row("rows written or deleted meanwhile", f"{totals.old - totals.deleted:,}")
    return table


@store_app.command()
def repair(
    uri: Uri,
    *,
    entity: EntityText = None,
    entity_base64: EntityBase64 = None,
    key: KeyText = None,
    key_base64: KeyBase64 = None,
    all_keys: Annotated[bool, typer.Option("--all-keys", help="All rows of the entity.")] = False,
    seq: Annotated[
        int, typer.Option(min=0, max=MAX_SEQ, metavar="N", help="The seq that rows are brought down to.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Ask nothing.")] = False,
) -> None:
    """Lower the seq of rows, so that the guard takes new writes again. It is never raised.

    A seq is a time in milliseconds since the Unix epoch, or little more. An event from the future leaves
    a row that no write of today replaces; --seq with the time of the newest sound event repairs it.

    Exit codes: 0 done, or nothing to do; 1 a row is missing, changed meanwhile or does not decode, its seq
    would rise, the answer was no, or the store failed; 2 wrong arguments.
    """
    parsed = read_uri(uri)
    entity_key = _needed("--entity", entity, entity_base64)
    if all_keys == (key is not None or key_base64 is not None):
        raise typer.BadParameter("give either --key or --all-keys")
    row_key = None if all_keys else _row_key(key, key_base64)
    rows = run_on_loop(_rows_to_repair(parsed, entity_key, row_key))
    plan = plan_repair(rows, seq)
    _check_repair(plan, rows, seq, one_row=not all_keys)
    if plan.lowered:
        _print(f"Repair of {parsed.redacted}", _repair_table(plan))
        if not yes:
            typer.confirm("Lower the seq of these rows?", abort=True)
        changed = run_on_loop(_replace(parsed, plan))
        typer.echo(f"rows lowered to seq {seq}: {changed:,}")
        if changed < len(plan.lowered):
            complain(
                f"rows that changed meanwhile and were left: {len(plan.lowered) - changed:,}; look again"
            )
            raise typer.Exit(1)
    if all_keys and plan.kept:
        typer.echo(f"rows left, as their seq is not above {seq}: {len(plan.kept):,}")
    if plan.unreadable:
        raise typer.Exit(1)


async def _rows_to_repair(uri: StoreUri, entity_key: bytes, key: str | None) -> list[StoreRow]:
    async with opened(uri) as store:
        if key is None:
            return [row async for rows in store.pages(_DEFAULT_BATCH, entity_key) for row in rows]
        row = await store.call(store.store.load(entity_key, key))
        return [] if row is None else [row]


def _check_repair(plan: RepairPlan, rows: Sequence[StoreRow], seq: int, *, one_row: bool) -> None:
    """Refuse what a repair cannot do; say what it leaves out.

    Raises:
        typer.Exit: With 1 where nothing can be done.
    """
    if not rows:
        complain("there is no such row")
        raise typer.Exit(1)
    _complain_of(
        "rows left as they are, as their records do not decode", len(plan.unreadable), _ids(plan.unreadable)
    )
    if one_row and any(row.seq < seq for row in plan.kept):
        complain(f"the row's seq is {plan.kept[0].seq}, and a repair only lowers it")
        raise typer.Exit(1)
    if one_row and plan.kept:
        typer.echo(f"the row's seq is {seq} already")


def _ids(rows: Iterable[StoreRow]) -> list[RowId]:
    return [row.row_id for row in rows]


def _repair_table(plan: RepairPlan) -> Table:
    table = columns("entity", "key", ">seq before", ">seq after", "updated at")
    for row, lowered in plan.lowered:
        table.add_row(
            shown_bytes(row.entity_key),
            shown_bytes(row.key.encode()),
            str(row.seq),
            str(lowered.seq),
            shown_time(row.updated_at_ms),
        )
    return table


async def _replace(uri: StoreUri, plan: RepairPlan) -> int:
    """Put the lowered rows in place; return how many were as they had been read."""
    async with opened(uri) as store:
        return sum([await store.call(store.admin.replace_seq(row, lowered)) for row, lowered in plan.lowered])


def _given(option: str, text: str | None, encoded: str | None) -> bytes | None:
    """Return an option that may be given as text or as base64."""
    try:
        return given_bytes(text, encoded)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _needed(option: str, text: str | None, encoded: str | None) -> bytes:
    """Return the same where it must be given."""
    given = _given(option, text, encoded)
    if given is None:
        raise typer.BadParameter(f"give {option} or {option}-base64")
    return given


def _row_key(text: str | None, encoded: str | None) -> str:
    key = _needed("--key", text, encoded)
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("a row's key is UTF-8", param_hint="--key") from None


def _place(option: str, cursor: str) -> RowId:
    try:
        return place_of(cursor)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _print(title: str, table: Table) -> None:
    """Print a table below its title, which may be wider: a URI is not folded."""
    console = plain_console()
    console.print(title, soft_wrap=True)
    console.print(table)


def _pairs() -> Table:
    """Return an empty table of names and values."""
    table = columns("", ">")
    table.show_header = False
    return table


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
