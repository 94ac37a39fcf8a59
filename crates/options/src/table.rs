//! The table itself, and the [`Options`] that it fills in.

use core::ffi::CStr;

use crate::kind::{Choice, Kind, Value};
use crate::networks::Networks;
use crate::settings::{Fabric, LogLevel, LogTarget, PathMode, Profile, RuleSource, Stream};
use crate::text::Text;

/// Everything that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How much to give up for latency.
    pub profile: Profile,
    /// Whether to promote at all.
    pub path: PathMode,
    /// How bytes go in memory.
    pub stream: Stream,
    /// Messages that may be under way on a Virtual Interface.
    pub via_window: u32,
    /// How many messages are acknowledged together, less one.
    pub via_delayed: u32,
    /// Whether data acknowledges data.
    pub via_piggyback: bool,
    /// Whether small messages go together.
    pub via_combine: bool,
    /// The connections that may be promoted.
    pub rules: RuleSource,
    /// Socket calls on a connection before it is posted. `None`: it is learnt how many pay.
    pub promote_after: Option<u32>,
    /// Calls a second that make a connection worth moving. `None`: the profile decides.
    pub promote_rate: Option<u32>,
    /// The longest spin in microseconds. `None`: the profile decides.
    pub spin_us: Option<u32>,
    /// Wake by eventfd where possible.
    pub bells: bool,
    /// Move to a larger ring when the small one keeps filling up.
    pub grow: bool,
    /// Whether programs that are started with an empty environment are accelerated.
    pub empty_env: bool,
    /// The file of the board.
    pub board: Text,
    /// The folder where processes of several network namespaces meet.
    pub meeting: Text,
    /// The networks whose hosts count as this one's cluster.
    pub cluster: Networks,
    /// The network that carries bytes between hosts.
    pub fabric: Fabric,
    /// The file with the cluster's key.
    pub cluster_key: Option<Text>,
    /// Where agents listen.
    pub agent_port: u16,
    /// Where messages go.
    pub log: LogTarget,
    /// Which messages are written.
    pub log_level: LogLevel,
    /// The only configuration file to read.
    pub config: Option<Text>,
    /// The library that `shunt run` preloads.
    pub lib: Option<Text>,
    /// Whether sleeping calls check now and then that they have missed no wake-up. Internal.
    pub check_sleepers: bool,
    /// The counters that `shunt run --stats` and `--require` read. Internal.
    pub report: Option<Text>,
}

impl Options {
    /// The board of a host whose containers take part, where it is there and none is named.
    pub const HOST_BOARD: &CStr = c"/run/shunt/board";
    /// Where programs of its containers meet.
    pub const HOST_MEETING: &CStr = c"/run/shunt/meeting";

    /// The values of options that are not set; [`TABLE`] has the same in words.
    pub const DEFAULT: Options = Options {
        profile: Profile::Balanced,
        path: PathMode::Auto,
        stream: Stream::Ring,
        via_window: 32,
        via_delayed: 16,
        via_piggyback: true,
        via_combine: true,
        rules: RuleSource::Usual,
        promote_after: None,
        promote_rate: None,
        spin_us: None,
        bells: true,
        grow: true,
        empty_env: false,
        board: Text::new(b"/dev/shm/shunt-board").unwrap(),
        meeting: Text::new(b"/run/shunt/meeting").unwrap(),
        cluster: Networks::NONE,
        fabric: Fabric::Auto,
        cluster_key: None,
        agent_port: 4770,
        log: LogTarget::None,
        log_level: LogLevel::Warn,
        config: None,
        lib: None,
        check_sleepers: false,
        report: None,
    };

    /// Whether no board is named.
    pub fn has_usual_board(&self) -> bool {
        self.board.as_bytes() == Options::DEFAULT.board.as_bytes()
    }

    /// Calls a second that make a connection worth moving. 0: it always is, however seldom it is
    /// used.
    pub fn calls_per_second(&self) -> u32 {
        let by_profile = match self.profile {
            Profile::Safe | Profile::Balanced => 500,
            Profile::Latency => 0,
        };
        self.promote_rate.unwrap_or(by_profile)
    }

    /// The longest time, in nanoseconds, that a call may spin before it sleeps.
    pub fn spin_ns(&self) -> u64 {
        let by_profile = match self.profile {
            Profile::Safe => 0,
            Profile::Balanced => 50,
            Profile::Latency => 1000,
        };
        u64::from(self.spin_us.unwrap_or(by_profile)) * 1000
    }
}

/// One option.
#[derive(Clone, Copy)]
pub struct Opt {
    /// Its name in files, and as a flag: `promote-after`.
    pub name: &'static str,
    /// Its name in the environment: `SHUNT_PROMOTE_AFTER`.
    pub env: &'static str,
    /// Its type and range.
    pub kind: Kind,
    /// Its default, as one would write it; empty if it is unset.
    pub default: &'static str,
    /// Where it may be set.
    pub scope: Scope,
    /// Its effect, in one line.
    pub short: &'static str,
    /// All that one has to know to set it: a paragraph or more, for the man page.
    pub long: &'static str,
    /// Stores a value of its kind in `Options`.
    pub set: fn(&mut Options, Value),
}

/// Where an option may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// By flag, environment and file.
    Anywhere,
    /// By flag and environment.
    NotInFile,
    /// By `shunt` itself, in the environment of the programs it starts. Not shown to users.
    Internal,
}

impl Opt {
    /// Whether help shows it to users.
    pub fn is_public(&self) -> bool {
        self.scope != Scope::Internal
    }

    pub(crate) fn in_file(&self) -> bool {
        self.scope == Scope::Anywhere
    }
}

/// All options, in the order in which help shows them.
pub static TABLE: &[Opt] = &[
    Opt {
        name: "profile",
        env: "SHUNT_PROFILE",
        kind: Kind::Choice(&[
            Choice {
                name: "safe",
                help: "never spin: sleep as plain TCP does; for hosts with more work than CPUs",
            },
            Choice { name: "balanced", help: "spin at most 50 us, and only where it has paid off" },
            Choice { name: "latency", help: "spin up to 1 ms; for programs with CPUs of their own" },
        ]),
        default: "balanced",
        scope: Scope::Anywhere,
        short: "What to give up for latency",
        long: "How much CPU time a program may spend on waiting less. A call that waits for data first looks at memory for a \
while (it spins), and only then sleeps in the kernel, which costs both sides several microseconds. The profile sets the \
longest spin; the time actually spun is learned from how long recent waits lasted, and is nothing where there is no CPU to \
spare. An idle program uses no CPU under any profile.",
        set: |options, value| {
            if let Value::Choice(i) = value {
                options.profile = [Profile::Safe, Profile::Balanced, Profile::Latency][i];
            }
        },
    },
    Opt {
        name: "path",
        env: "SHUNT_PATH",
        kind: Kind::Choice(&[
            Choice { name: "auto", help: "memory where both ends allow it, TCP elsewhere" },
            Choice { name: "tcp", help: "kernel TCP for everything" },
        ]),
        default: "auto",
        scope: Scope::Anywhere,
        short: "Which way the bytes may go",
        long: "With auto, a connection moves to memory as soon as both of its ends turn out to run under Shunt on this host. \
With tcp the library is loaded and watches, but every byte stays on the kernel's connection: a way to find out whether a \
problem has to do with Shunt, and what its hooks alone cost.",
        set: |options, value| {
            if let Value::Choice(i) = value {
                options.path = [PathMode::Auto, PathMode::Tcp][i];
            }
        },
    },
    Opt {
        name: "stream",
        env: "SHUNT_STREAM",
        kind: Kind::Choice(&[
            Choice { name: "ring", help: "a ring of bytes in memory that both ends map" },
            Choice {
                name: "via",
                help: "messages of Virtual Interfaces, with a window and acknowledgements",
            },
        ]),
        default: "ring",
        scope: Scope::Anywhere,
        short: "How the bytes go in memory",
        long: "With via, connections are carried as SOVIA and SocketVIA carried sockets, by descriptors and credits over Virtual \
Interfaces: to compare the two on one machine. The end that makes the offer decides. A connection whose window is full of small messages \
goes on by a ring.",
        set: |options, value| {
            if let Value::Choice(i) = value {
                options.stream = [Stream::Ring, Stream::Via][i];
            }
        },
    },
    Opt {
        name: "via-window",
        env: "SHUNT_VIA_WINDOW",
        kind: Kind::Number { min: 1, max: 32, unit: "messages", auto: false },
        default: "32",
        scope: Scope::Anywhere,
        short: "Messages that may be under way, with stream = via",
        long: "SOVIA's window w: the number of messages, of 8 KB at most, that a writer may be ahead of its reader. With 1 each waits until the \
one before it was acknowledged. The end that makes the offer decides for both.",
        set: |options, value| {
            if let Value::Number(n) = value {
                options.via_window = n;
            }
        },
    },
    Opt {
        name: "via-delayed",
        env: "SHUNT_VIA_DELAYED",
        kind: Kind::Number { min: 0, max: 31, unit: "messages", auto: false },
        default: "16",
        scope: Scope::Anywhere,
        short: "Acknowledgements that may be delayed, with stream = via",
        long: "SOVIA's threshold t: a reader acknowledges when it has read more messages than this since it did so last; one less than the \
window at most. With 0 it acknowledges each.",
        set: |options, value| {
            if let Value::Number(n) = value {
                options.via_delayed = n;
            }
        },
    },
    Opt {
        name: "via-piggyback",
        env: "SHUNT_VIA_PIGGYBACK",
        kind: Kind::Switch,
        default: "on",
        scope: Scope::Anywhere,
        short: "Let data acknowledge data, with stream = via",
        long: "A message acknowledges what came the other way, so that no message of its own does. With off acknowledgements are always \
messages of their own.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.via_piggyback = on;
            }
        },
    },
    Opt {
        name: "via-combine",
        env: "SHUNT_VIA_COMBINE",
        kind: Kind::Switch,
        default: "on",
        scope: Scope::Anywhere,
        short: "Let small messages go together, with stream = via",
        long: "Writes of less than 2 KB are put together in messages, unless the program has set TCP_NODELAY. \
Nothing is held back: what was written can be read at once. With off each write is a message of its own.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.via_combine = on;
            }
        },
    },
    Opt {
        name: "rules",
        env: "SHUNT_RULES",
        kind: Kind::Rules,
        default: "",
        scope: Scope::Anywhere,
        short: "Which programs, addresses and ports may use memory, and which stay on TCP",
        long: "Rules of the form `use shunt|tcp client|server|* PROGRAM ADDR[/BITS]:PORT[-PORT]`, with semicolons between \
them, or the absolute path of a file with one on each line. The first that matches a connection decides; where none does, it \
may use memory. Unset, they are in $XDG_CONFIG_HOME/shunt.rules (~/.config/shunt.rules if that is not set), or else in \
/etc/shunt.rules, if one of these is there and config names no other file. One set of rules counts, never two together; \
/dev/null is none at all. Where something in them is not understood, every connection stays on TCP. shunt help rules and \
shunt.rules(5) say more; shunt doctor --rules PROGRAM ADDR says which rule decides.",
        set: |options, value| {
            if let Value::Rules(rules) = value {
                options.rules = rules;
            }
        },
    },
    Opt {
        name: "promote-after",
        env: "SHUNT_PROMOTE_AFTER",
        kind: Kind::Number { min: 0, max: 1_000_000, unit: "socket calls", auto: true },
        default: "auto",
        scope: Scope::Anywhere,
        short: "Socket calls on a connection before it may move to memory",
        long: "A connection is left alone until the program has made this many calls that send or receive on it, so that \
short ones do not pay for a move from which they would not profit: it costs about as much as fifty round trips. auto \
begins with 64 calls, or 256 KB, and learns from the connections of the same listener, or to the same address: between 16 \
calls, where they live long, and 1024, where they end soon after a move. 0 moves connections as soon as they are used. \
Under auto one that gains nothing in memory goes back. \
Counted at each end for itself.",
        set: |options, value| match value {
            Value::Number(n) => options.promote_after = Some(n),
            Value::Auto => options.promote_after = None,
            _ => {}
        },
    },
    Opt {
        name: "promote-rate",
        env: "SHUNT_PROMOTE_RATE",
        kind: Kind::Number { min: 0, max: 1_000_000, unit: "socket calls a second", auto: true },
        default: "auto",
        scope: Scope::Anywhere,
        short: "Socket calls a second that make a connection worth moving to memory",
        long: "Where a request comes now and then, both ends are asleep whenever something arrives, and it is the kernel that \
wakes them, by whatever way the bytes go: memory gains nothing. So a connection that is used more seldom than this stays on \
TCP, until it is used more, unless its program is busy (it uses more than a sixteenth of a CPU). auto leaves it to the \
profile: 500 for safe and balanced, 0 for latency. 0 moves connections however seldom they are used. Counted over 16 calls \
that send or receive, at each end for itself.",
        set: |options, value| match value {
            Value::Number(n) => options.promote_rate = Some(n),
            Value::Auto => options.promote_rate = None,
            _ => {}
        },
    },
    Opt {
        name: "spin-us",
        env: "SHUNT_SPIN_US",
        kind: Kind::Number { min: 0, max: 100_000, unit: "microseconds", auto: true },
        default: "auto",
        scope: Scope::Anywhere,
        short: "The longest spin before a waiting call sleeps",
        long: "In microseconds. auto leaves it to the profile: 0 for safe, 50 for balanced, 1000 for latency. 0 never spins. \
It is an upper limit: less is spun where longer has not paid off.",
        set: |options, value| match value {
            Value::Number(us) => options.spin_us = Some(us),
            Value::Auto => options.spin_us = None,
            _ => {}
        },
    },
    Opt {
        name: "bells",
        env: "SHUNT_BELLS",
        kind: Kind::Switch,
        default: "on",
        scope: Scope::Anywhere,
        short: "Wake a sleeping peer through an eventfd where that is possible",
        long: "A sleeping peer is woken through an eventfd that it passed when the two processes met, or by one byte on the \
kernel's connection. The eventfd is cheaper. With off, always the byte; the result is the same.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.bells = on;
            }
        },
    },
    Opt {
        name: "grow",
        env: "SHUNT_GROW",
        kind: Kind::Switch,
        default: "on",
        scope: Scope::Anywhere,
        short: "Give connections that keep filling their ring a larger one",
        long: "Each direction of a connection starts with a small ring, 16 KB, which stays in the CPU's cache, and moves to \
one of 256 KB when its writer keeps finding it full. With off all stay small: less memory, less bandwidth for bulk data. A connection \
with stream = via goes on by the ring where it would be stuck otherwise, and nowhere else, whatever this says.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.grow = on;
            }
        },
    },
    Opt {
        name: "empty-env",
        env: "SHUNT_EMPTY_ENV",
        kind: Kind::Switch,
        default: "off",
        scope: Scope::Anywhere,
        short: "Accelerate programs that are started with an empty environment, too",
        long: "Programs that an accelerated one starts are accelerated by LD_PRELOAD and the SHUNT_* variables, which are put into \
their environment where the program has left them out. An environment that the program has made empty stays empty, and what is started with it runs plain, \
unless this is on. `shunt run --stats` counts such starts.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.empty_env = on;
            }
        },
    },
    Opt {
        name: "board",
        env: "SHUNT_BOARD",
        kind: Kind::Path,
        default: "/dev/shm/shunt-board",
        scope: Scope::Anywhere,
        short: "The file by which the two ends of a connection find each other",
        long: "Both ends of a connection must name the same file. It holds hints only, no data, and nothing in it is trusted; \
it is made when it is missing. If it cannot be opened, or is damaged, connections stay on TCP. Processes with different \
boards do not find each other: a way to keep groups of programs apart. Where /run/shunt/board is there, which shunt container makes, it is \
used in the place of the default.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.board = path;
            }
        },
    },
    Opt {
        name: "meeting",
        env: "SHUNT_MEETING",
        kind: Kind::Path,
        default: "/run/shunt/meeting",
        scope: Scope::Anywhere,
        short: "The folder by which programs in containers with networks of their own find each other",
        long: "Where it is there, as shunt container makes it, each process has a socket in it, and two ends of a connection between network \
namespaces, also through NAT, prove to each other by the connection itself that they belong together. Both must see the same folder, and the \
same board. Without it, and before Linux 6.16, such connections stay on TCP.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.meeting = path;
            }
        },
    },
    Opt {
        name: "cluster",
        env: "SHUNT_CLUSTER",
        kind: Kind::Networks,
        default: "",
        scope: Scope::Anywhere,
        short: "Networks whose hosts run Shunt, too: connections to them may go by RDMA",
        long: "Networks, like 10.1.0.0/16 or fd00::/8, separated by commas. A connection whose both ends are in them may move to remote \
memory between the hosts, if an agent (shunt agent) runs on both, with the same key. Unset, Shunt stays on this host.",
        set: |options, value| {
            if let Value::Networks(networks) = value {
                options.cluster = networks;
            }
        },
    },
    Opt {
        name: "fabric",
        env: "SHUNT_FABRIC",
        kind: Kind::Choice(&[
            Choice { name: "auto", help: "the fastest network that libfabric finds; not tcp" },
            Choice { name: "verbs", help: "InfiniBand, RoCE, iWARP" },
            Choice { name: "efa", help: "Amazon's Elastic Fabric Adapter" },
            Choice { name: "opx", help: "Omni-Path Express" },
            Choice { name: "psm3", help: "Intel's Ethernet fabric" },
            Choice { name: "cxi", help: "Slingshot" },
            Choice { name: "tcp", help: "kernel TCP, to test with: slower than no fabric at all" },
        ]),
        default: "auto",
        scope: Scope::Anywhere,
        short: "Which network connections to other hosts of the cluster may use",
        long: "A provider of libfabric (libfabric.so.1), which is opened when it is first needed. Where it is missing, or finds no such \
network, connections to other hosts stay on TCP. Only of use together with cluster, or for shunt ether between hosts.",
        set: |options, value| {
            if let Value::Choice(i) = value {
                options.fabric = [
                    Fabric::Auto,
                    Fabric::Verbs,
                    Fabric::Efa,
                    Fabric::Opx,
                    Fabric::Psm3,
                    Fabric::Cxi,
                    Fabric::Tcp,
                ][i];
            }
        },
    },
    Opt {
        name: "cluster-key",
        env: "SHUNT_CLUSTER_KEY",
        kind: Kind::Path,
        default: "",
        scope: Scope::Anywhere,
        short: "The file with the key that the agents of a cluster share",
        long: "Made by shunt agent new-key, the same on each host, readable by its owner alone. Unset, it is \
$XDG_CONFIG_HOME/shunt.key, or ~/.config/shunt.key if that is not set; for a system's agent /etc/shunt.key. Only agents and shunt ether read it.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.cluster_key = Some(path);
            }
        },
    },
    Opt {
        name: "agent-port",
        env: "SHUNT_AGENT_PORT",
        kind: Kind::Number { min: 1, max: 65535, unit: "(a TCP port)", auto: false },
        default: "4770",
        scope: Scope::Anywhere,
        short: "The TCP port by which agents of different hosts talk",
        long: "The same on all hosts of a cluster. Agents of several users of one host need one each.",
        set: |options, value| {
            if let Value::Number(port) = value {
                options.agent_port = port as u16;
            }
        },
    },
    Opt {
        name: "log",
        env: "SHUNT_LOG",
        kind: Kind::ChoiceOrPath(&[
            Choice { name: "none", help: "nothing is written anywhere" },
            Choice { name: "stderr", help: "the program's standard error" },
            Choice { name: "syslog", help: "the system's log, facility user" },
        ]),
        default: "none",
        scope: Scope::Anywhere,
        short: "Where the library's messages go",
        long: "Shunt writes nothing to the standard output or standard error of the programs it runs in unless it is asked to. \
An absolute path appends to that file, which is made if it is missing.",
        set: |options, value| match value {
            Value::Choice(i) => {
                options.log = [LogTarget::None, LogTarget::Stderr, LogTarget::Syslog][i];
            }
            Value::Path(path) => options.log = LogTarget::File(path),
            _ => {}
        },
    },
    Opt {
        name: "log-level",
        env: "SHUNT_LOG_LEVEL",
        kind: Kind::Choice(&[
            Choice { name: "error", help: "what does not work at all" },
            Choice {
                name: "warn",
                help: "and what is set wrongly or stays on TCP for a reason that can be removed",
            },
            Choice {
                name: "info",
                help: "and each connection that moves, with the reason for those that do not",
            },
            Choice { name: "debug", help: "and every step on the way" },
        ]),
        default: "warn",
        scope: Scope::Anywhere,
        short: "Which of the library's messages are written",
        long: "Each level includes those before it. Only of use together with log.",
        set: |options, value| {
            if let Value::Choice(i) = value {
                options.log_level = [LogLevel::Error, LogLevel::Warn, LogLevel::Info, LogLevel::Debug][i];
            }
        },
    },
    Opt {
        name: "config",
        env: "SHUNT_CONFIG",
        kind: Kind::Path,
        default: "",
        scope: Scope::NotInFile,
        short: "Read this configuration file instead of the usual ones",
        long: "The usual ones are /etc/shunt.conf and then $XDG_CONFIG_HOME/shunt.conf, or ~/.config/shunt.conf if that is \
not set; either may be missing. A file named here must exist. /dev/null reads none at all.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.config = Some(path);
            }
        },
    },
    Opt {
        name: "lib",
        env: "SHUNT_LIB",
        kind: Kind::Path,
        default: "",
        scope: Scope::NotInFile,
        short: "The library that shunt run preloads",
        long: "Where libshunt.so is. Unset, it is looked for beside the command, in ../lib/shunt relative to it, in \
/usr/local/lib/shunt and in /usr/lib/shunt.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.lib = Some(path);
            }
        },
    },
    Opt {
        name: "check-sleepers",
        env: "SHUNT_CHECK_SLEEPERS",
        kind: Kind::Switch,
        default: "off",
        scope: Scope::Internal,
        short: "End a program that has missed a wake-up",
        long: "For tests: a call that has slept for a second checks whether what it waits for is there already, and ends the program if so.",
        set: |options, value| {
            if let Value::Switch(on) = value {
                options.check_sleepers = on;
            }
        },
    },
    Opt {
        name: "report",
        env: "SHUNT_REPORT",
        kind: Kind::Path,
        default: "",
        scope: Scope::Internal,
        short: "The counters that shunt run reads at the end",
        long: "A file of 4096 bytes that shunt run makes for --stats and --require, and every process below it adds to.",
        set: |options, value| {
            if let Value::Path(path) = value {
                options.report = Some(path);
            }
        },
    },
];
