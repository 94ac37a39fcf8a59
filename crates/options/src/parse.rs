//! The parser of values.

use crate::kind::{Choice, Kind, Value};
use crate::networks::Networks;
use crate::problem::Fault;
use crate::rules;
use crate::settings::RuleSource;
use crate::text::{LongText, Text};

impl Kind {
    /// Reads one value. Spaces are part of it: callers that read files trim first.
    pub fn parse<'a>(&self, value: &'a [u8]) -> Result<Value, Fault<'a>> {
        if value.is_empty() {
            return Err(Fault::Empty(*self));
        }
        match *self {
            Kind::Choice(choices) => word(choices, value).ok_or(Fault::Value(*self)),
            Kind::ChoiceOrPath(choices) => match word(choices, value) {
                Some(found) => Ok(found),
                None if value[0] == b'/' => self.path(value).map(Value::Path),
                None => Err(Fault::Value(*self)),
            },
            Kind::Number { auto: true, .. } if value == b"auto" => Ok(Value::Auto),
            Kind::Number { min, max, .. } => match digits(value) {
                Some(number) if (u64::from(min)..=u64::from(max)).contains(&number) => {
                    Ok(Value::Number(number as u32))
                }
                _ => Err(Fault::Value(*self)),
            },
            Kind::Switch => match value {
                b"on" | b"yes" | b"true" | b"1" => Ok(Value::Switch(true)),
                b"off" | b"no" | b"false" | b"0" => Ok(Value::Switch(false)),
                _ => Err(Fault::Value(*self)),
            },
            Kind::Path => self.path(value).map(Value::Path),
            Kind::Rules if value[0] == b'/' => self.path(value).map(RuleSource::File).map(Value::Rules),
            Kind::Networks => Networks::parse(value).map(Value::Networks).ok_or(Fault::Value(*self)),
            Kind::Rules => self.inline(value).map(RuleSource::Inline).map(Value::Rules),
        }
    }

    fn path<'a>(&self, value: &[u8]) -> Result<Text, Fault<'a>> {
        if value[0] != b'/' {
            return Err(Fault::Value(*self));
        }
        if value.len() > Text::MAX {
            return Err(Fault::TooLong);
        }
        Text::new(value).ok_or(Fault::Value(*self))
    }

    fn inline<'a>(&self, value: &'a [u8]) -> Result<LongText, Fault<'a>> {
        if !value.iter().any(u8::is_ascii_whitespace) {
            // No rule is a single word: this is rather a path that is not absolute.
            return Err(Fault::Value(*self));
        }
        if value.len() > LongText::MAX {
            return Err(Fault::TooManyRules);
        }
        match rules::inline(value).find_map(Result::err) {
            Some(fault) => Err(Fault::Rule(fault)),
            None => LongText::new(value).ok_or(Fault::Value(*self)),
        }
    }
}

fn word(choices: &[Choice], value: &[u8]) -> Option<Value> {
    choices.iter().position(|choice| choice.name.as_bytes() == value).map(Value::Choice)
}

/// A number in decimal digits and nothing else. It saturates: a number that large is out of range
/// anyway.
fn digits(value: &[u8]) -> Option<u64> {
    value.iter().try_fold(0u64, |number, &byte| {
        byte.is_ascii_digit().then(|| number.saturating_mul(10).saturating_add(u64::from(byte - b'0')))
    })
}
