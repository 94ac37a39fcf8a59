//! The words after `shunt bench` and `shunt demo`, and their meaning.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// Something that can be measured, and its explanation. Help, man page and completions are made of
/// this table.
pub struct Group {
    pub name: &'static str,
    pub help: &'static [&'static str],
}

const GROUPS: [Group; 14] = [
    Group { name: "latency", help: &["64-byte round trips, with blocking calls and under epoll"] },
    Group {
        name: "asleep",
        help: &[
            "64-byte round trips of programs that never spin (--profile safe), with blocking calls and under poll, on two",
            "CPUs and on one, beside memory whose reader sleeps on a futex or an eventfd",
        ],
    },
    Group { name: "throughput", help: &["one-way messages of 64 B, 4 KB, 64 KB and 1 MB"] },
    Group {
        name: "apps",
        help: &[
            "redis, memcached, nginx and PostgreSQL under their usual load tools;",
            "one of them by its name: redis, memcached, nginx, postgres",
        ],
    },
    Group {
        name: "ftp",
        help: &[
            "files of 19 and 146 MB on a tmpfs between vsftpd and lftp and the classic ftp client, beside a copy",
            "of the same file",
        ],
    },
    Group { name: "rpc", help: &["calls of an empty ONC remote procedure with a string of 0 to 4096 bytes"] },
    Group {
        name: "via",
        help: &[
            "VIPL: latency, bandwidth, and many Virtual Interfaces on one completion queue, beside raw memory and sockets",
        ],
    },
    Group {
        name: "ether",
        help: &[
            "TCP over ETHOM and ETHOS, over veth, VXLAN, tinc, fastd, vde2 and socat, between two network namespaces",
            "of its own making, at MTU 1450, 8950 and 65000; and over ETHOM beside Shunt's sockets. Needs root",
        ],
    },
    Group {
        name: "containers",
        help: &[
            "64-byte round trips, and redis, between two network namespaces of its own making on a bridge, as containers",
            "have them (docs/containers.md), beside the same on one host. Needs root",
        ],
    },
    Group {
        name: "ofi",
        help: &[
            "a stream over a link of libfabric, as between hosts, beside fi_pingpong, libfabric's remote writes and",
            "messages, kernel TCP and UNIX sockets: on this host by the provider tcp, or to another one (docs/cluster.md)",
        ],
    },
    Group {
        name: "filters",
        help: &[
            "DataCutter's filters over TCP and fast sockets, figures 24 to 31 of its paper: simulated in virtual time with",
            "the paper's constants and with this machine's curves, and measured where two processors are enough; what a",
            "buffer costs beside ZeroMQ, Dask, Ray and Shunt's stream; unequal consumers. Each value is marked. One part:",
            "filters-paper, filters-pipeline (what is measured for it), filters-overhead, filters-heterogeneity",
        ],
    },
    Group {
        name: "never-slower",
        help: &["busy machine, one end only, short connections, rare requests, idle"],
    },
    Group {
        name: "footprint",
        help: &[
            "what a program carries under Shunt: descriptors, addresses, memory, threads, the time of its start",
        ],
    },
    Group { name: "idle", help: &["many idle connections beside a few active ones"] },
];

/// All words that `shunt bench` knows, and their explanations.
pub fn words() -> impl Iterator<Item = (&'static str, String)> {
    let groups = GROUPS.iter().map(|group| (group.name, group.help.join(" ")));
    let alone = APPS.iter().chain(&FILTERS_PARTS).map(|part| (*part, format!("{part} alone")));
    groups.chain(alone).chain([("all", "everything".into())])
}

pub fn bench_help() -> String {
    let mut what = String::new();
    for group in &GROUPS {
        for (line, text) in group.help.iter().enumerate() {
            what += &format!("  {:<13}  {text}\n", if line == 0 { group.name } else { "" });
        }
    }
    BENCH_HELP.replace("{WHAT}", &what)
}

const BENCH_HELP: &str = "\
usage: shunt bench [WHAT ...] [OPTIONS]

Measures Shunt, kernel TCP, UNIX sockets and the raw-memory limit in turns and prints medians, spread and ratios.

WHAT (default: latency throughput)
{WHAT}  all            everything

OPTIONS
  --rounds N     rounds, each with every contender once (default 5)
  --duration S   seconds of one measurement (default 1; applications take twice that)
  --quick        2 rounds of 0.3 s: does everything run?
  --unpinned     programs run where the kernel puts them, as when nobody pins them (default: a server has one processor to
                 itself, a client another); of applications it is promised then that none is slower than by kernel TCP
  --connections N  connections of `idle` (default 10000)
  --provider P   libfabric's provider for `ofi` (default tcp)
  --at ADDRESS   where the servers of `ofi` are reached (default 127.0.0.1)
  --remote WORDS  what starts them there, put before a command, as 'ssh HOST' (default: nothing, they are on this host)
  --beside FILE  another build of libshunt.so, measured in turn with this one (latency, asleep, throughput and apps)
  --json         all raw numbers as JSON on stdout, the tables on stderr
  --plot DIR     draw PNG plots into DIR
  --check        exit with 3 where a ratio misses what the project promises
  --help

ENVIRONMENT
  SHUNT_LIB      the libshunt.so to measure       SHUNT_LIBEXEC  the directory of the measuring programs
  SHUNT_BENCH_PYTHON  a Python that has what filters are compared with (scripts/bootstrap.sh filters)
  Other SHUNT_* options reach the measured programs.
";

/// The name of the demo's plot where none is given.
pub const PLOT: &str = "shunt-demo.png";

pub const DEMO_HELP: &str = "\
usage: shunt demo [--plot FILE.png | DIR] [--duration S]

Runs an unmodified redis-server and redis-benchmark (GET and SET, 50 connections) plain and under Shunt, in turns, and
prints the comparison. Takes about half a minute and saves a plot, ./shunt-demo.png where nothing else is said.
";

pub const APPS: [&str; 4] = ["redis", "memcached", "nginx", "postgres"];

pub const FILTERS_PARTS: [&str; 4] =
    ["filters-paper", "filters-pipeline", "filters-overhead", "filters-heterogeneity"];

#[derive(Debug, PartialEq)]
pub enum Parsed<T> {
    Help,
    Run(T),
}

#[derive(Debug, Clone, PartialEq)]
pub struct BenchOptions {
    /// Groups of measurements, in the order of the help.
    pub what: Vec<String>,
    /// The user's words for what was asked for.
    pub words: Vec<String>,
    /// The applications among `apps`, and whether each was asked for by name.
    pub apps: Vec<String>,
    pub apps_by_name: bool,
    /// The parts of `filters`.
    pub filters: Vec<String>,
    /// The network of `ofi`.
    pub fabric: FabricOptions,
    pub rounds: usize,
    pub duration: f64,
    pub connections: usize,
    /// Nothing is bound to a processor.
    pub unpinned: bool,
    /// Another build of the library.
    pub beside: Option<PathBuf>,
    pub json: bool,
    pub plot: Option<PathBuf>,
    pub check: bool,
}

/// The network of `ofi`, and the other host.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricOptions {
    pub provider: String,
    pub at: Ipv4Addr,
    /// Words before the command of a server. None: on this host.
    pub remote: Vec<String>,
}

impl Default for FabricOptions {
    fn default() -> FabricOptions {
        FabricOptions { provider: "tcp".into(), at: Ipv4Addr::LOCALHOST, remote: Vec::new() }
    }
}

impl BenchOptions {
    /// Whether the user asked for this by its name.
    pub fn asked_for(&self, name: &str) -> bool {
        self.words.iter().any(|word| word == name)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct DemoOptions {
    pub plot: PathBuf,
    pub duration: f64,
}

pub fn parse_bench(args: &[OsString]) -> Result<Parsed<BenchOptions>, String> {
    let mut words: Vec<String> = Vec::new();
    let (mut rounds, mut duration, mut quick, mut unpinned) = (None, None, false, false);
    let (mut json, mut plot, mut check, mut connections) = (false, None, false, 10_000);
    let (mut fabric, mut beside) = (FabricOptions::default(), None);
    let mut args = Args::new(args);
    while let Some(word) = args.word()? {
        match word.as_str() {
            "-h" | "--help" => return Ok(Parsed::Help),
            "--provider" => fabric.provider = text(args.value("--provider")?)?,
            "--at" => {
                let at = text(args.value("--at")?)?;
                fabric.at = at.parse().map_err(|_| format!("--at: {at} is not an IPv4 address"))?;
            }
            "--remote" => {
                fabric.remote = text(args.value("--remote")?)?.split_whitespace().map(String::from).collect();
            }
            "--beside" => beside = Some(PathBuf::from(args.value("--beside")?)),
            "--json" => json = true,
            "--quick" => quick = true,
            "--unpinned" => unpinned = true,
            "--check" => check = true,
            "--plot" => plot = Some(PathBuf::from(args.value("--plot")?)),
            "--rounds" => rounds = Some(args.number("--rounds", 1.0, 1000.0)? as usize),
            "--duration" => duration = Some(args.number("--duration", 0.05, 3600.0)?),
            "--connections" => connections = args.number("--connections", 100.0, 1e6)? as usize,
            other if other.starts_with('-') => return Err(format!("unknown option {other}")),
            other => words.push(other.to_string()),
        }
    }
    for word in &words {
        let known = self::words().any(|(name, _)| name == word);
        if !known {
            return Err(format!("nothing is called {word}"));
        }
    }
    if words.is_empty() {
        words = vec!["latency".into(), "throughput".into()];
    }
    let has = |name: &str| words.iter().any(|w| w == name || w == "all");
    let named = |of: &[&str]| -> Vec<String> {
        of.iter().filter(|part| words.iter().any(|word| word == *part)).map(|part| part.to_string()).collect()
    };
    let (named, parts) = (named(&APPS), named(&FILTERS_PARTS));
    let by_part = |name: &str| match name {
        "apps" => !named.is_empty(),
        "filters" => !parts.is_empty(),
        _ => false,
    };
    let what: Vec<String> = GROUPS
        .iter()
        .map(|group| group.name)
        .filter(|name| has(name) || by_part(name))
        .map(String::from)
        .collect();
    let alone =
        what.iter().find(|name| !["latency", "asleep", "throughput", "apps"].contains(&name.as_str()));
    if let (Some(name), Some(_)) = (alone, &beside) {
        return Err(format!("--beside is for latency, asleep, throughput and apps, not for {name}"));
    }
    if unpinned && what.iter().any(|name| name == "asleep") {
        return Err("--unpinned is not for asleep, whose rows say which processors they use".into());
    }
    let all_apps = has("apps") || named.is_empty();
    let all_filters = has("filters");
    Ok(Parsed::Run(BenchOptions {
        what,
        filters: if all_filters { FILTERS_PARTS.map(String::from).to_vec() } else { parts },
        apps: if all_apps { APPS.map(String::from).to_vec() } else { named.clone() },
        apps_by_name: !named.is_empty(),
        words,
        fabric,
        rounds: rounds.unwrap_or(if quick { 2 } else { 5 }),
        duration: duration.unwrap_or(if quick { 0.3 } else { 1.0 }),
        connections,
        unpinned,
        beside,
        json,
        plot,
        check,
    }))
}

fn text(value: OsString) -> Result<String, String> {
    value.into_string().map_err(|value| format!("{} is not text", value.to_string_lossy()))
}

pub fn parse_demo(args: &[OsString]) -> Result<Parsed<DemoOptions>, String> {
    let mut options = DemoOptions { plot: PathBuf::from(PLOT), duration: 1.5 };
    let mut args = Args::new(args);
    while let Some(word) = args.word()? {
        match word.as_str() {
            "-h" | "--help" => return Ok(Parsed::Help),
            "--plot" => options.plot = PathBuf::from(args.value("--plot")?),
            "--duration" => options.duration = args.number("--duration", 0.1, 600.0)?,
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(Parsed::Run(options))
}

/// The arguments with `--name=value` taken apart.
struct Args<'a> {
    rest: std::iter::Cloned<std::slice::Iter<'a, OsString>>,
    /// The value of a `--name=value` whose name was just returned.
    attached: Option<OsString>,
}

impl<'a> Args<'a> {
    fn new(args: &'a [OsString]) -> Args<'a> {
        Args { rest: args.iter().cloned(), attached: None }
    }

    fn word(&mut self) -> Result<Option<String>, String> {
        if let Some(value) = self.attached.take() {
            return Err(format!("an option takes no value, but has {}", value.to_string_lossy()));
        }
        let Some(word) = self.rest.next() else { return Ok(None) };
        let word = word.into_string().map_err(|w| format!("{} is not text", w.to_string_lossy()))?;
        match word.split_once('=') {
            Some((name, value)) if name.starts_with("--") => {
                self.attached = Some(value.into());
                Ok(Some(name.to_string()))
            }
            _ => Ok(Some(word)),
        }
    }

    fn value(&mut self, name: &str) -> Result<OsString, String> {
        self.attached.take().or_else(|| self.rest.next()).ok_or_else(|| format!("{name} needs a value"))
    }

    fn number(&mut self, name: &str, least: f64, most: f64) -> Result<f64, String> {
        let text = self.value(name)?;
        let number = text.to_str().and_then(|t| t.parse::<f64>().ok());
        match number {
            Some(n) if n >= least && n <= most => Ok(n),
            _ => Err(format!("{name} {} is not a number from {least} to {most}", text.to_string_lossy())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(words: &[&str]) -> Result<Parsed<BenchOptions>, String> {
        parse_bench(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    fn run(words: &[&str]) -> BenchOptions {
        match bench(words) {
            Ok(Parsed::Run(options)) => options,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_words_latency_and_throughput_run() {
        let options = run(&[]);
        assert_eq!(options.what, ["latency", "throughput"]);
        assert_eq!((options.rounds, options.duration), (5, 1.0));
    }

    #[test]
    fn an_application_by_name_runs_alone() {
        let options = run(&["nginx", "--rounds=3"]);
        assert_eq!(options.what, ["apps"]);
        assert_eq!(options.apps, ["nginx"]);
        assert!(options.apps_by_name);
        assert_eq!((options.rounds, options.unpinned), (3, false));
        assert!(run(&["nginx", "--unpinned"]).unpinned);
        assert!(bench(&["asleep", "--unpinned"]).is_err());
    }

    #[test]
    fn a_part_of_filters_runs_alone() {
        let options = run(&["filters-overhead"]);
        assert_eq!(
            (options.what, options.filters),
            (vec!["filters".into()], vec!["filters-overhead".into()])
        );
        assert_eq!(run(&["filters", "filters-overhead"]).filters, FILTERS_PARTS);
        assert!(run(&["latency"]).filters.is_empty());
    }

    #[test]
    fn a_group_is_asked_for_by_its_name_only() {
        assert!(run(&["ftp", "rpc"]).asked_for("ftp"));
        assert_eq!(run(&["rpc", "ftp"]).what, ["ftp", "rpc"]);
        assert!(!run(&["all"]).asked_for("ftp"));
    }

    #[test]
    fn all_is_everything_and_quick_is_short() {
        let options = run(&["all", "--quick", "--json", "--plot", "plots"]);
        assert_eq!(options.what, GROUPS.map(|group| group.name));
        assert_eq!(options.apps, APPS);
        assert!(!options.apps_by_name && options.json);
        assert_eq!((options.rounds, options.duration), (2, 0.3));
        assert_eq!(options.plot, Some(PathBuf::from("plots")));
    }

    #[test]
    fn the_help_has_every_group() {
        let help = bench_help();
        assert!(GROUPS.iter().all(|group| help.contains(&format!("\n  {} ", group.name))), "{help}");
        assert!(!help.contains("{WHAT}"));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for words in [
            &["speed"][..],
            &["--fast"],
            &["--rounds"],
            &["--rounds", "0"],
            &["--rounds", "x"],
            &["--json=1"],
            &["idle", "--beside", "libshunt.so"],
        ] {
            assert!(bench(words).is_err(), "{words:?}");
        }
    }
}
