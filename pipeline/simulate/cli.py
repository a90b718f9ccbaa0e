"""`keylane spark simulate`: what members and lanes bring for a topic's keys and times.

Exit codes: 0 done, 1 no scenario is within `--wait-ms`, 2 bad input, 3 Spark or storage failed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import click

from keylane.embedded.resolve import print_progress
from keylane.errors import ConfigInvalid, KeylaneError
from keylane.pipeline.arguments import (
    fail,
    kafka_options,
    load_plan,
    range_options,
    read_pairs,
    spark_options,
    start_session,
)
from keylane.pipeline.settings import is_local
from keylane.pipeline.simulate.model import (
    ARRIVALS,
    ASSIGNORS,
    SIGMA,
    SPREADS,
    SimulationRequest,
    WorkModel,
    expect_between,
)
from keylane.pipeline.storage import FOLDER, open_folder, scheme_of
from keylane.usage import FILE, HELP_NAMES, expect_one, is_given

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from keylane.pipeline.simulate.model import Simulation

EXIT_MISSED: Final = 1
PRICE_MAX: Final = 1e9
WAIT_MS_MAX: Final = 1e12
MEASURED: Final = ("partition", "offset", "work_ms")


@click.command(
    "simulate",
    context_settings=dict(HELP_NAMES),
    short_help="What members and lanes bring, for real keys and times.",
)
@kafka_options
@click.option("--topic", required=True, metavar="NAME", help="The topic.")
@range_options
@click.option("--members", required=True, metavar="K,K", help="Numbers of members: 8,32.")
@click.option("--lanes", metavar="L,L", help="Numbers of lanes per partition: 16,64.")
@click.option("--plan", type=FILE, metavar="PLAN.JSON", help="Lanes that a plan cuts.")
@click.option(
    "--assignor",
    type=click.Choice(ASSIGNORS),
    default="key-range",
    show_default=True,
    help="What deals out lanes: keylane in a classic group, in a group of the consumer protocol,"
    " before it knows any load; or Kafka's own.",
)
@click.option("--work-ms", type=float, metavar="MS", help="Time that a member takes for a record.")
@click.option(
    "--work-per-kb", type=float, metavar="MS", help="Time per 1,000 bytes of key and value."
)
@click.option(
    "--work-spread", type=click.Choice(SPREADS), help="Spread around that mean; constant if not."
)
@click.option("--sigma", type=float, metavar="S", help="Of a lognormal spread (0.5 if not given).")
@click.option("--seed", type=int, metavar="N", help="Of a spread (0 if not given).")
@click.option(
    "--work-from",
    type=FOLDER,
    metavar="FOLDER",
    help="Measured times: Parquet with partition, offset, work_ms. --work-ms gives what it lacks.",
)
@click.option(
    "--arrivals",
    type=click.Choice(ARRIVALS),
    default="real",
    show_default=True,
    help="When records arrive: by their times, or all before the start.",
)
@click.option(
    "--rate", type=float, metavar="RECORDS/S", help="Stretch or press the times to this rate."
)
@click.option(
    "--parallel-per-member",
    "parallel",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Records that a member works on at once, each key always in one of N places.",
)
@click.option("--price", type=float, metavar="P", help="Of a member for an hour, in any currency.")
@click.option(
    "--wait-ms",
    type=float,
    metavar="MS",
    help="Print the fewest members and lanes with a p99 within this; exit 1 if there are none.",
)
@click.option("--out", type=FOLDER, metavar="FOLDER", help="Path or URI for what is written.")
@click.option(
    "--heavy", type=int, default=20, show_default=True, metavar="N", help="How many heavy keys."
)
@spark_options
def simulate_command(**options: Any) -> int:
    """Simulate a group on a topic's records, for each number of members and lanes.

    Prints a row per scenario, beside today's way, and writes JSON, Parquet files and a picture.
    """
    args = SimpleNamespace(**options)
    expect_one({"--lanes": args.lanes, "--plan": args.plan})
    return run_simulate_command(args)


def run_simulate_command(args: SimpleNamespace) -> int:
    """Simulate, print, and write what was found."""
    try:
        options = read_pairs("--option", args.option)
        request = _read_request(args)
        with start_session(
            f"keylane simulate {args.topic}", master=args.master, conf=args.conf
        ) as spark:
            # Late: they need pyspark, and a session says so where it is missing.
            from keylane.pipeline.simulate.job import run_simulation
            from keylane.pipeline.simulate.queueing import plain_records
            from keylane.pipeline.topic_range import count_tasks, find_range, read_range

            chosen = find_range(
                spark, args.bootstrap, args.topic, start=args.start, end=args.end, options=options
            )
            # Records are ordered again for each queue.
            read = read_range(spark, chosen, min_partitions=count_tasks(chosen))
            records = plain_records(read)
            if args.work_from is not None:
                records = _measured(spark, records, args.work_from, request.work)
            simulation = run_simulation(
                spark,
                records,
                request,
                topic=args.topic,
                partition_count=chosen.partition_count,
                progress=print_progress,
            )
            if args.out is not None:
                _write(spark, args.out, simulation, args.price)
    except (KeylaneError, OSError) as error:
        return fail("simulate", error)
    return _print(simulation, args.price, args.wait_ms)


def _read_request(args: SimpleNamespace) -> SimulationRequest:
    for name, most in (("price", PRICE_MAX), ("wait_ms", WAIT_MS_MAX)):
        value = getattr(args, name)
        expect_between(f"--{name.replace('_', '-')}", 0 if value is None else value, 0, most)
    return SimulationRequest(
        members=_read_counts("--members", args.members),
        lanes=() if args.lanes is None else _read_counts("--lanes", args.lanes),
        plan=None if args.plan is None else load_plan(args.plan, args.topic),
        work=_read_work(args),
        assignor=args.assignor,
        arrivals=args.arrivals,
        rate=args.rate,
        parallel=args.parallel,
        heavy_count=args.heavy,
    )


def _read_counts(flag: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigInvalid(f"{flag} {text[:80]}: expected numbers such as 8,32") from None


def _read_work(args: SimpleNamespace) -> WorkModel | None:
    """None: all times are measured."""
    if args.work_ms is None and args.work_per_kb is None:
        if args.work_from is None:
            raise ConfigInvalid("--work-ms is missing: the time that a member takes for a record")
        for name in ("work_spread", "sigma", "seed"):
            if is_given(getattr(args, name)):
                flag = f"--{name.replace('_', '-')}"
                raise ConfigInvalid(f"{flag}: needs --work-ms, measured times have their spread")
        return None
    if args.sigma is not None and args.work_spread != "lognormal":
        raise ConfigInvalid("--sigma: needs --work-spread lognormal")
    if args.seed is not None and args.work_spread in (None, "constant"):
        raise ConfigInvalid("--seed: needs --work-spread exponential or lognormal")
    return WorkModel(
        base_ms=args.work_ms or 0.0,
        per_kb_ms=args.work_per_kb or 0.0,
        spread=args.work_spread or "constant",
        sigma=SIGMA if args.sigma is None else args.sigma,
        seed=args.seed or 0,
    )


def _measured(
    spark: SparkSession, records: DataFrame, text: str, work: WorkModel | None
) -> DataFrame:
    """Records with their measured times. Raises: ConfigInvalid, no such folder or columns."""
    from keylane.pipeline.job import spark_errors
    from keylane.pipeline.simulate.queueing import with_measured_work

    if scheme_of(text) is None and not is_local(str(spark.sparkContext.master)):
        raise ConfigInvalid(f"--work-from {text}: workers of a cluster read URIs, not this folder")
    folder = open_folder(text, spark)
    if not folder.names():
        raise ConfigInvalid(f"--work-from {text}: is empty, or not there")
    with spark_errors(f"--work-from {text}"):
        times = spark.read.parquet(folder.uri)
    missing = sorted(set(MEASURED) - set(times.columns))
    if missing:
        raise ConfigInvalid(f"--work-from {text}: has no column {', '.join(missing)}")
    return with_measured_work(records, times, work)


def _write(spark: SparkSession, out: str, simulation: Simulation, price: float | None) -> None:
    from keylane.pipeline.simulate.picture import FORMATS, draw, write_picture
    from keylane.pipeline.simulate.report import write_json, write_keys, write_members

    folder = open_folder(out, spark)
    folder.write("members.parquet", write_members(simulation))
    folder.write("keys.parquet", write_keys(simulation))
    picture = draw(simulation)
    for kind in FORMATS:
        folder.write(f"simulation.{kind}", write_picture(picture, kind))
    folder.write("simulation.json", write_json(simulation, price))


def _print(simulation: Simulation, price: float | None, wait_ms: float | None) -> int:
    from keylane.pipeline.simulate.report import advise, render

    print(render(simulation, price), flush=True)
    if wait_ms is None:
        return 0
    line, is_met = advise(simulation, wait_ms)
    print(line, flush=True)
    return 0 if is_met else EXIT_MISSED
