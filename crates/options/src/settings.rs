//! The types of options that are more than a number or a switch: of fields of [`crate::Options`].

use crate::text::{LongText, Text};

/// How much to give up for latency: see the help of the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Profile {
    Safe,
    Balanced,
    Latency,
}

/// Which paths connections may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathMode {
    /// Promote where possible.
    Auto,
    /// Stay on kernel TCP.
    Tcp,
}

/// How bytes go in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// By rings.
    Ring,
    /// By messages of Virtual Interfaces.
    Via,
}

/// The network that carries bytes between hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fabric {
    Auto,
    Verbs,
    Efa,
    Opx,
    Psm3,
    Cxi,
    Tcp,
}

impl Fabric {
    /// The name of libfabric's provider. `None`: the best that there is, but not `tcp`.
    pub const fn provider(self) -> Option<&'static str> {
        match self {
            Fabric::Auto => None,
            Fabric::Verbs => Some("verbs"),
            Fabric::Efa => Some("efa"),
            Fabric::Opx => Some("opx"),
            Fabric::Psm3 => Some("psm3"),
            Fabric::Cxi => Some("cxi"),
            Fabric::Tcp => Some("tcp"),
        }
    }
}

/// Where the rules are; [`crate::rules`] is their language.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    /// In the first of [`crate::rule_files`] that is there.
    Usual,
    /// Here.
    Inline(LongText),
    /// In this file.
    File(Text),
    /// Nowhere: the option's value is not understood. Everything stays on TCP.
    Wrong,
}

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogTarget {
    /// Nowhere.
    None,
    /// The standard error of the program.
    Stderr,
    /// The system's log.
    Syslog,
    /// Appended to a file.
    File(Text),
}

/// How much is logged: each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}
