//! The command line: every subcommand and flag, for clap. The flags of `shunt run` that set options
//! come from the table of options, so that a new option needs no change here; help, man pages and
//! completions are made from what this returns.

use std::ffi::{OsStr, OsString};

use clap::builder::{
    OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser,
};
use clap::{Arg, ArgAction, Command, ValueHint, value_parser};
use options::{Fault, Kind, LongText, Opt, TABLE, Text};

/// Shown after the help of `shunt run`, and in its man page.
pub const EXIT_STATUS: &str =
    "  125   shunt run failed itself: a wrong flag, or --require and wrong rules or nothing moved to memory
  126   PROGRAM was found and cannot be executed
  127   PROGRAM was not found
  128+N PROGRAM was killed by signal N (with --stats or --require)
  else  the exit status of PROGRAM";

/// The whole command line.
pub fn command() -> Command {
    Command::new("shunt")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Lets unmodified socket programs on one host talk through memory instead of TCP")
        .long_about(
            "Lets unmodified socket programs on one host talk through memory instead of TCP.\n\nStart both ends under \
             `shunt run`. Their TCP connections stay as they are, but once both ends of one turn out to run under Shunt, \
             the bytes move to memory that both map. Whatever Shunt does not understand stays on, or goes back to, TCP.",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([run(), stat(), doctor(), bench(), demo(), ether(), agent(), container()])
        .subcommands(OF_PYTHON.iter().map(|(name, _, about)| passed_on(Command::new(*name).about(*about))))
        .subcommands([help(), generate()])
}

fn run() -> Command {
    Command::new("run")
        .about("Start a program under Shunt")
        .long_about(
            "Starts PROGRAM with libshunt.so in front of libc (LD_PRELOAD). Programs that it starts run under Shunt as \
             well. Without --require and --stats the program takes the place of this command, with the same process id; \
             with one of them, shunt stays its parent, passes signals on, and ends as the program ends.\n\nA program that \
             cannot be accelerated (static, setuid, for neither glibc nor musl, ...) runs plain after a message that says why; with \
             --require it does not run.",
        )
        .after_help(format!("Exit status:\n{EXIT_STATUS}"))
        .override_usage("shunt run [OPTIONS] [--] PROGRAM [ARGS]...")
        .arg(
            flag("require")
                .help("Fail, with exit status 125, if no connection moved to memory")
                .long_help(
                    "Fail if no connection of the program, or of those it started, moved to memory. A program that cannot \
                     be accelerated, or whose rules are wrong, is not started at all. The reasons counted go to standard error. The exit status is \
                     125, or the program's own if that is not 0.",
                ),
        )
        .arg(flag("stats").help("Print a summary to standard error when the program ends"))
        .args(TABLE.iter().filter(|opt| opt.is_public()).map(option))
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .help("The program, and its arguments")
                .value_hint(ValueHint::CommandWithArguments)
                .value_parser(value_parser!(OsString))
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true),
        )
}

/// The flag that sets an option of the table.
fn option(opt: &'static Opt) -> Arg {
    let default =
        if opt.default.is_empty() { String::new() } else { format!("\n\nDefault: {}.", opt.default) };
    Arg::new(opt.name)
        .long(opt.name)
        .value_name(value_name(opt.kind))
        .value_parser(value_parser_of(opt))
        .value_hint(match opt.kind {
            Kind::Path | Kind::ChoiceOrPath(_) | Kind::Rules => ValueHint::FilePath,
            _ => ValueHint::Other,
        })
        .help(match opt.default {
            "" => opt.short.to_string(),
            default => format!("{} [default: {default}]", opt.short),
        })
        .long_help(format!(
            "{}\n\n{}\n\nAllowed: {}.{default} Environment: {}.",
            opt.short, opt.long, opt.kind, opt.env
        ))
        .help_heading("Library options")
}

/// What stands for the value in help.
pub fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Choice(_) => "WORD",
        Kind::ChoiceOrPath(_) => "WORD|FILE",
        Kind::Number { .. } => "N",
        Kind::Switch => "on|off",
        Kind::Path => "FILE",
        Kind::Rules => "RULES|FILE",
        Kind::Networks => "NETWORKS",
    }
}

fn value_parser_of(opt: &'static Opt) -> ValueParser {
    match opt.kind {
        Kind::Choice(choices) => {
            let values = choices.iter().map(|choice| PossibleValue::new(choice.name).help(choice.help));
            PossibleValuesParser::new(values).map(OsString::from).into()
        }
        Kind::Switch => {
            let on = PossibleValue::new("on").aliases(["yes", "true", "1"]);
            let off = PossibleValue::new("off").aliases(["no", "false", "0"]);
            PossibleValuesParser::new([on, off]).map(OsString::from).into()
        }
        _ => OsStringValueParser::new().try_map(move |value| checked(opt, value)).into(),
    }
}

/// A value that fits its option. The program may run elsewhere later, so that a relative path is
/// made absolute here.
fn checked(opt: &Opt, value: OsString) -> Result<OsString, String> {
    let is_path = match opt.kind {
        Kind::Path => !value.is_empty(),
        Kind::ChoiceOrPath(_) => value.as_encoded_bytes().contains(&b'/'),
        // No rule begins with a dot, or is a single word.
        Kind::Rules => {
            let bytes = value.as_encoded_bytes();
            bytes.starts_with(b".") || !bytes.is_empty() && !bytes.iter().any(u8::is_ascii_whitespace)
        }
        _ => false,
    };
    let value = match std::path::absolute(&value) {
        Ok(path) if is_path => path.into_os_string(),
        _ => value,
    };
    match opt.kind.parse(value.as_encoded_bytes()) {
        Ok(_) => Ok(value),
        Err(Fault::TooLong) => Err(format!("the path is longer than {} bytes", Text::MAX)),
        Err(Fault::TooManyRules) => Err(format!("longer than {} bytes; put them in a file", LongText::MAX)),
        Err(Fault::Rule(fault)) => Err(format!("rule {}: {fault}", fault.number)),
        Err(_) => Err(format!("must be {}", opt.kind)),
    }
}

fn stat() -> Command {
    Command::new("stat")
        .about("Show the connections of running programs, and why those on TCP are on TCP")
        .long_about(
            "Shows every connection of the programs that run under Shunt: the path of each direction, the reason if it is \
             TCP, bytes in memory, wake-ups, and how many waits ended while spinning. Of programs in other namespaces it says in which \
             container they are: its id as engines show it, or the network namespace (netns:NAME). Reads what the programs write into \
             memory of their own anyway: nothing is attached to them, nothing slows them down. Without root, only your own.",
        )
        .arg(flag("json").help("Print JSON; with --watch, one document a line"))
        .arg(
            Arg::new("watch")
                .long("watch")
                .short('w')
                .value_name("SECONDS")
                .help("Repeat every SECONDS [default: 1]")
                .value_parser(seconds)
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("1"),
        )
        .arg(
            Arg::new("pid")
                .value_name("PID")
                .help("Only these processes")
                .value_parser(value_parser!(u32).range(1..))
                .action(ArgAction::Append)
                .num_args(0..),
        )
}

fn seconds(value: &str) -> Result<f64, String> {
    match value.parse::<f64>() {
        Ok(seconds) if (0.05..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("must be 0.05 to 86400 seconds".to_string()),
    }
}

fn doctor() -> Command {
    Command::new("doctor")
        .about("Say what would keep this host, or a program, from being accelerated")
        .long_about(
            "Tries what Shunt needs of this host and, given a PROGRAM, looks for what would keep that one from being \
             accelerated. Run it as the user, and in the container, that the program runs in. Each line is ok, warn (works, \
             with a limit) or fail (stays on TCP), with what to do about it.\n\nWith --rules it says only which rule decides \
             about connections that PROGRAM makes to ADDR, and about those that it accepts there.",
        )
        .after_help(
            "Exit status:\n  0  nothing fails; the rules are understood\n  1  something fails; the rules are wrong\n  2  wrong usage",
        )
        .arg(flag("json").help("Print JSON"))
        .arg(
            Arg::new("rules")
                .long("rules")
                .value_names(["PROGRAM", "ADDR"])
                .help("Say which rule decides about this program at this address, such as 127.0.0.1:80 or [::1]:80")
                .value_parser(value_parser!(OsString))
                .num_args(2)
                .conflicts_with("pid"),
        )
        .arg(
            flag("container")
                .conflicts_with("rules")
                .help("Look at what containers of this host get: the CDI file, board and meeting place, the kernel, the engines"),
        )
        .arg(
            Arg::new("pid")
                .long("pid")
                .value_name("PID")
                .help("Look at this running process: is libshunt mapped there, and what limits it")
                .value_parser(value_parser!(u32).range(1..)),
        )
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .conflicts_with("rules")
                .help("Look at this program: a path, or a name to be found in PATH")
                .value_hint(ValueHint::CommandName)
                .value_parser(value_parser!(OsString)),
        )
}

fn bench() -> Command {
    let about = "Measure Shunt, kernel TCP, UNIX sockets and bare memory, in one run";
    passed_on(Command::new("bench").about(about))
        .mut_arg("args", |arg| arg.value_name("WHAT").value_parser(BenchWords))
}

/// Anything, since `bench` reads it itself, which also has the table of what there is: for
/// completions and the man page.
#[derive(Clone)]
struct BenchWords;

impl TypedValueParser for BenchWords {
    type Value = OsString;

    fn parse_ref(&self, _: &Command, _: Option<&Arg>, value: &OsStr) -> Result<OsString, clap::Error> {
        Ok(value.into())
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(bench::words().map(|(name, help)| PossibleValue::new(name).help(help))))
    }
}

fn demo() -> Command {
    passed_on(Command::new("demo").about("Run Redis plain and under Shunt, and compare"))
}

/// Subcommands that are modules of Python's: name, module, what it is.
pub const OF_PYTHON: [(&str, &str, &str); 2] = [
    (
        "filters",
        "shunt.filters",
        "Filter groups in Python, DataCutter's filter streams: simulate, measure, run",
    ),
    (
        "microscope",
        "shunt.microscope",
        "Serve a page that shows a slide, whose tiles come out of a filter group",
    ),
];

/// A subcommand whose arguments are read elsewhere.
fn passed_on(command: Command) -> Command {
    command.disable_help_flag(true).arg(
        Arg::new("args")
            .value_parser(value_parser!(OsString))
            .num_args(0..)
            .trailing_var_arg(true)
            .allow_hyphen_values(true),
    )
}

/// Shown after the help of `shunt ether`, and in its man pages.
pub const ETHER_STATUS: &str = "  0  done
  1  it failed, or no daemon answers
  2  wrong usage
  3  the table is wrong";

fn ether() -> Command {
    let table = || {
        Arg::new("table")
            .value_name("TABLE")
            .help("The table of hosts, a TOML file (docs/ether.md)")
            .value_hint(ValueHint::FilePath)
            .value_parser(value_parser!(std::path::PathBuf))
            .required(true)
    };
    let asks = |command: Command| {
        command
            .arg(
                Arg::new("dir")
                    .long("dir")
                    .value_name("DIR")
                    .help(format!(
                        "Where the daemons meet: `directory` of their table [default: {}]",
                        ::ether::table::DIRECTORY
                    ))
                    .value_hint(ValueHint::DirPath)
                    .value_parser(value_parser!(std::path::PathBuf)),
            )
            .arg(
                Arg::new("host")
                    .long("host")
                    .value_name("ID")
                    .help("Only the daemon of this host [default: all that are there]")
                    .value_parser(value_parser!(u16).range(1..=65_534)),
            )
    };
    Command::new("ether")
        .about("Ethernet interfaces whose wire is UDP (ETHOS) or memory (ETHOM)")
        .long_about(
            "Makes TAP interfaces and carries their frames to the other hosts of a table: as UDP datagrams without a header (ETHOS, which \
             QEMU's -netdev dgram speaks, too) or by message queues in memory between network namespaces and containers of one host \
             (ETHOM), or, with addresses in the table and the cluster's key, in remote memory between hosts. TIPC, bridges, bonds, VLANs and IP run on top as on any Ethernet.\n\nThe table is one file, the same on each host; \
             docs/ether.md explains it. The address of host NN is 02:45:54:48:00:NN.",
        )
        .after_help(format!("Exit status:\n{ETHER_STATUS}"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("run")
                .about("Be a host: make the interfaces and carry frames, until SIGTERM or SIGINT")
                .long_about(
                    "Makes the interfaces of the nets that this host is on and carries their frames, in the foreground, until SIGTERM or \
                     SIGINT. Needs CAP_NET_ADMIN and drops every other right. SIGHUP reads the table again.",
                )
                .after_help(format!("Exit status:\n{ETHER_STATUS}"))
                .arg(
                    Arg::new("host")
                        .long("host")
                        .value_name("ID")
                        .help("Which host of the table this is: its number or name [env: SHUNT_ETHER_HOST]"),
                )
                .arg(
                    Arg::new("user")
                        .long("user")
                        .value_name("NAME")
                        .help("Become this user, as root, and keep CAP_NET_ADMIN alone"),
                )
                .arg(table()),
        )
        .subcommand(Command::new("check").about("Say what is wrong with a table").after_help(format!("Exit status:\n{ETHER_STATUS}")).arg(table()))
        .subcommand(
            asks(Command::new("reload").about("Have the daemons read their table again"))
                .long_about(
                    "Has the daemons read their table again. Hosts come and go without disturbing the others; a net whose own settings \
                     changed gets a new interface. If the table is wrong, nothing changes.",
                )
                .after_help(format!("Exit status:\n{ETHER_STATUS}")),
        )
        .subcommand(
            asks(Command::new("stat").about("Show peers, what went to and fro, and what was dropped for which reason"))
                .after_help(format!("Exit status:\n{ETHER_STATUS}"))
                .arg(flag("json").help("Print JSON").conflicts_with("prometheus"))
                .arg(flag("prometheus").help("Print what Prometheus reads")),
        )
        .subcommand(
            asks(Command::new("dump").about("Write frames as they pass, as pcapng"))
                .long_about(
                    "Writes the frames of a daemon as pcapng, for tcpdump -r and Wireshark, until it is interrupted or COUNT have \
                     passed. What the daemon could not write fast enough is counted as dump_lost in stat --json.",
                )
                .after_help(format!("Exit status:\n{ETHER_STATUS}"))
                .arg(
                    Arg::new("write")
                        .long("write")
                        .short('w')
                        .value_name("FILE")
                        .help("Where to [default: standard output]")
                        .value_hint(ValueHint::FilePath)
                        .value_parser(value_parser!(std::path::PathBuf)),
                )
                .arg(
                    Arg::new("count")
                        .long("count")
                        .short('c')
                        .value_name("COUNT")
                        .help("End after so many frames")
                        .value_parser(value_parser!(u64).range(1..)),
                )
                .arg(
                    Arg::new("snap")
                        .long("snap")
                        .value_name("BYTES")
                        .help("Keep so much of each frame")
                        .default_value("262144")
                        .value_parser(value_parser!(u32).range(1..=262_144)),
                )
                .arg(Arg::new("net").value_name("NET").help("Only this net")),
        )
        .subcommand(asks(Command::new("stop").about("End the daemons")).after_help(format!("Exit status:\n{ETHER_STATUS}")))
}

/// Shown after the help of `shunt agent`, and in its man pages.
pub const AGENT_STATUS: &str = "  0  done
  1  it failed, or no agent answers
  2  wrong usage";

fn agent() -> Command {
    let after = || format!("Exit status:\n{AGENT_STATUS}");
    Command::new("agent")
        .about("Introduce the processes of this host to those of others in the cluster")
        .long_about(
            "An agent runs on each host of a cluster. It introduces processes under Shunt that have a TCP connection to another host to each \
             other, so that they can move it to remote memory (RDMA), and carries no data: if it ends, connections that have moved do not \
             notice, and none moves until it is back. Agents prove to each other that they have the cluster's key.\n\nWhich networks are the \
             cluster's, where the key is and by which port agents talk is set by the options cluster, cluster-key and agent-port (shunt help \
             options). `shunt run` starts an agent for the user where cluster is set and none is there. docs/cluster.md explains all of it.",
        )
        .after_help(after())
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommand(
            Command::new("run")
                .about("Be the agent of this host, in the foreground")
                .long_about(
                    "Serves the processes of the user who runs it; root's serves those of all users. Needs no rights. Messages go to standard \
                     error. Ends on SIGTERM or SIGINT.",
                )
                .after_help(after())
                .arg(
                    Arg::new("idle")
                        .long("idle")
                        .value_name("SECONDS")
                        .help("End when no process has needed it for so long [default: never]")
                        .value_parser(value_parser!(u64).range(1..)),
                ),
        )
        .subcommand(
            Command::new("status")
                .about("Show whom the agent serves, which others it talks to, and what it has refused")
                .after_help(after())
                .arg(flag("json").help("Print JSON")),
        )
        .subcommand(
            Command::new("new-key")
                .about("Make a key for a cluster, to be copied to each of its hosts")
                .long_about(
                    "Makes a key: 32 random bytes in a file that only its owner may read. Whoever has the key can introduce processes to those of \
                     the cluster. A file that is there is not overwritten.",
                )
                .after_help(after())
                .arg(
                    Arg::new("file")
                        .value_name("FILE")
                        .help("The file to make, like ~/.config/shunt.key")
                        .value_hint(ValueHint::FilePath)
                        .value_parser(value_parser!(std::path::PathBuf))
                        .required(true),
                ),
        )
}

fn container() -> Command {
    Command::new("container")
        .about("Put Shunt into containers that ask for it (CDI)")
        .long_about(format!(
            "Writes a CDI file (/etc/cdi/shunt.json), by which container engines (Docker from 25, Podman from 4.1, containerd, CRI-O) put Shunt \
             into the containers that are started with --device {}. Nothing else changes, in no other container, and no daemon is \
             needed.\n\nSuch a container gets three files: the library, /etc/ld.so.preload, which names it to each program, and {}, the \
             board of this host, which is made now and when the host starts. Static programs run plain. A glibc must be 2.17 or newer. \
             musl (Alpine) does not read /etc/ld.so.preload: a container of such an image is started with LD_PRELOAD={} as well.\n\nPrograms \
             that share a network namespace move their connections to memory: those of one container, of one pod, of containers with the \
             host's network, and of the host itself.\n\nBetween containers with networks of their own, on a bridge or \
             through NAT, connections stay on TCP. With --meeting they move as well, if both containers are started with --device {} (or are \
             the host). Such containers, and all users of the host, must not be each other's enemies: docs/security.md says what one could do. \
             Linux 6.16 or later.",
            crate::container::DEVICE,
            options::Options::HOST_BOARD.to_string_lossy(),
            crate::container::INSIDE,
            crate::container::MEETING_DEVICE,
        ))
        .after_help("Exit status:\n  0  done\n  1  it failed\n  2  wrong usage")
        .arg(flag("print").help("Print the CDI file, and change nothing"))
        .arg(flag("meeting").conflicts_with("remove").help(
            "Let containers that are started with --device shunt.dev/shunt=meeting, and trust each other, meet across networks",
        ))
        .arg(
            flag("remove").conflicts_with("print").help("Remove all that was written; containers that run keep what they have"),
        )
        .arg(
            Arg::new("library")
                .long("library")
                .value_name("FILE")
                .help("The library [default: the one that `shunt run` uses]")
                .value_hint(ValueHint::FilePath)
                .value_parser(value_parser!(std::path::PathBuf)),
        )
        .arg(
            Arg::new("root")
                .long("root")
                .value_name("DIR")
                .help("Write below this folder, for an image of a host [default: /]")
                .value_hint(ValueHint::DirPath)
                .value_parser(value_parser!(std::path::PathBuf)),
        )
}

fn help() -> Command {
    Command::new("help").about("Explain a subcommand, or the options").arg(
        Arg::new("topic").value_name("TOPIC").help("A subcommand, `options`, or `rules`").value_parser(
            PossibleValuesParser::new(
                ["options", "rules", "run", "stat", "doctor", "bench", "demo", "ether", "agent", "container"]
                    .into_iter()
                    .chain(OF_PYTHON.iter().map(|of| of.0)),
            ),
        ),
    )
}

fn generate() -> Command {
    Command::new("generate")
        .hide(true)
        .about("Write man pages or shell completions into a directory; for packages")
        .arg(Arg::new("what").required(true).value_parser(["man", "completions"]))
        .arg(
            Arg::new("dir")
                .required(true)
                .value_name("DIR")
                .value_hint(ValueHint::DirPath)
                .value_parser(value_parser!(std::path::PathBuf)),
        )
}

fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}
