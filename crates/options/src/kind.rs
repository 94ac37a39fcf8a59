//! The kinds of values that options have.

use core::fmt;

use crate::networks::Networks;
use crate::settings::RuleSource;
use crate::text::Text;

/// The type of an option, with its range.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// One of a few words.
    Choice(&'static [Choice]),
    /// One of a few words, or the absolute path of a file.
    ChoiceOrPath(&'static [Choice]),
    /// A whole number from `min` to `max`. With `auto`, the word `auto` as well.
    Number {
        /// The smallest number allowed.
        min: u32,
        /// The largest number allowed.
        max: u32,
        /// The things that are counted, in the plural, for the help.
        unit: &'static str,
        /// Whether `auto` is allowed.
        auto: bool,
    },
    /// `on` or `off` (also yes, true, 1 and no, false, 0).
    Switch,
    /// The absolute path of a file.
    Path,
    /// Rules, or the absolute path of a file of them.
    Rules,
    /// Networks.
    Networks,
}

/// A word that an option may be set to.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// The word.
    pub name: &'static str,
    /// Its meaning, in one line.
    pub help: &'static str,
}

/// A value that fits its option's [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// The position of the word among the choices.
    Choice(usize),
    /// A number in range.
    Number(u32),
    /// The word `auto`.
    Auto,
    /// On or off.
    Switch(bool),
    /// An absolute path.
    Path(Text),
    /// Rules.
    Rules(RuleSource),
    /// Networks.
    Networks(Networks),
}

/// Says what a value must be, as the end of a sentence.
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
