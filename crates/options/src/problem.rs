//! What can be wrong with an option, and how that is said: where it stands, what it says, what would be right.

use core::fmt;

use crate::kind::Kind;
use crate::read::suggestion;
use crate::rules::RuleFault;
use crate::text::{LongText, Shown, Text};

/// Something in the environment or in a file that was not understood. The option keeps the value it had before.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a> {
    /// Where it stands.
    pub source: Source,
    /// The name as written.
    pub name: &'a [u8],
    /// The value as written; empty if there is none.
    pub value: &'a [u8],
    /// What is wrong.
    pub fault: Fault<'a>,
}

/// Where an option was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The environment.
    Env,
    /// A line, counted from 1, of a configuration file.
    File {
        /// The file's path, if it is known.
        path: Option<Text>,
        /// The line.
        line: u32,
    },
    /// A flag of the command.
    Flag,
}

/// What is wrong with a name or a value.
#[derive(Clone, Copy, Debug)]
pub enum Fault<'a> {
    /// There is no option of this name.
    Unknown,
    /// The value is not of this kind.
    Value(Kind),
    /// There is no value; one of this kind is needed.
    Empty(Kind),
    /// A path longer than [`Text::MAX`].
    TooLong,
    /// Rules longer than [`LongText::MAX`].
    TooManyRules,
    /// A rule that is none.
    Rule(RuleFault<'a>),
    /// A line that is neither a comment nor `name = value`.
    Syntax,
    /// An option that makes no sense in a file.
    NotInFile,
    /// The configuration file cannot be read; the error number says why.
    Unreadable(i32),
}

impl Problem<'_> {
    /// For whoever reads the files: this one is there, or was named by `SHUNT_CONFIG`, and cannot be read, for this `errno`.
    pub fn unreadable(path: &Text, errno: i32) -> Problem<'_> {
        Problem { source: Source::Env, name: path.as_bytes(), value: b"", fault: Fault::Unreadable(errno) }
    }
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            Source::Env => {}
            Source::File { path: Some(path), line } => write!(f, "{path}:{line}: ")?,
            Source::File { path: None, line } => write!(f, "configuration file, line {line}: ")?,
            Source::Flag => f.write_str("--")?,
        }
        let (name, value) = (Shown(self.name), Shown(self.value));
        match self.fault {
            Fault::Unknown => {
                write!(f, "{name}: there is no such option")?;
                match suggestion(self.source, self.name) {
                    Some(near) => write!(f, "; did you mean {near}?"),
                    None => Ok(()),
                }
            }
            Fault::Value(kind) => write!(f, "{name}={value}: must be {kind}"),
            Fault::Empty(kind) => write!(f, "{name}: has no value; must be {kind}"),
            Fault::TooLong => write!(f, "{name}={value}: the path is longer than {} bytes", Text::MAX),
            Fault::TooManyRules => {
                write!(
                    f,
                    "{name}: longer than {} bytes; put the rules in a file, and name that",
                    LongText::MAX
                )
            }
            Fault::Rule(fault) => write!(f, "{name}: rule {}: {fault}", fault.number),
            Fault::Syntax => write!(f, "\"{name}\": must be `name = value` or a # comment"),
            Fault::NotInFile => {
                write!(f, "{name}: cannot be set in a file, only in the environment or by flag")
            }
            Fault::Unreadable(errno) => {
                write!(f, "{name}: the configuration file cannot be read (error {errno})")
            }
        }
    }
}

/// What a value must be, to end a sentence with.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Choice(choices) | Kind::ChoiceOrPath(choices) => {
                let path = matches!(self, Kind::ChoiceOrPath(_));
                for (i, choice) in choices.iter().enumerate() {
                    let last = i + 1 == choices.len() && !path;
                    f.write_str(if i == 0 {
                        ""
                    } else if last {
                        " or "
                    } else {
                        ", "
                    })?;
                    f.write_str(choice.name)?;
                }
                f.write_str(if path { " or the absolute path of a file" } else { "" })
            }
            Kind::Number { min, max, unit, auto } => {
                write!(f, "{}{min} to {max} {unit}", if auto { "auto, or " } else { "" })
            }
            Kind::Switch => f.write_str("on or off"),
            Kind::Path => f.write_str("an absolute path"),
            Kind::Networks => {
                f.write_str("up to 16 networks, like 10.1.0.0/16 or fd00::/8, with commas between them")
            }
            Kind::Rules => f.write_str("rules, with ; between them, or the absolute path of a file of rules"),
        }
    }
}
