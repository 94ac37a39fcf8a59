//! `shunt help`: the help of a subcommand, or of all options with their ranges, defaults and the ways to set them.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;

use options::{Kind, Opt, Scope, TABLE};

use crate::cli;

/// Where options may be set, strongest first.
pub const WAYS: &str = "\
An option can be set in four ways. The first that sets it counts:

  1. a flag of shunt run:            shunt run --spin-us=20 -- PROGRAM
  2. the environment:                SHUNT_SPIN_US=20
  3. the user's file:                $XDG_CONFIG_HOME/shunt.conf, or ~/.config/shunt.conf
  4. the system's file:              /etc/shunt.conf

A file has lines of the form `name = value`; a # opens a comment. Names and values that are not
understood are reported, by shunt run on standard error and by the library in its log; the option
keeps what it had.";

pub fn main(topic: Option<&str>) -> ExitCode {
    let text = match topic {
        None => cli::command().render_help().to_string(),
        Some("options") => options_help(),
        Some(topic) => {
            let mut command = cli::command();
            command.build();
            let found = command.find_subcommand_mut(topic);
            found.expect("clap lets only known topics pass").render_long_help().to_string()
        }
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE, // a closed pipe
    }
}

/// All options, for `shunt help options`.
fn options_help() -> String {
    let mut text = format!("The options of Shunt\n\n{WAYS}\n");
    for opt in TABLE.iter().filter(|opt| opt.is_public()) {
        let _ = write!(text, "\n{}  ({})\n", opt.name, opt.env);
        for paragraph in paragraphs(opt) {
            text.push_str(&filled(&paragraph, "    ", 96));
        }
    }
    text
}

/// What there is to say about an option, a paragraph each. The man page has the same.
pub fn paragraphs(opt: &Opt) -> Vec<String> {
    let mut all = vec![format!("{}.", opt.short), opt.long.to_string()];
    let default = match opt.default {
        "" => String::new(),
        default => format!(" Default: {default}."),
    };
    let place = if opt.scope == Scope::NotInFile { " Not in files." } else { "" };
    all.push(format!("Allowed: {}.{default}{place}", opt.kind));
    if let Kind::Choice(choices) | Kind::ChoiceOrPath(choices) = opt.kind {
        all.extend(choices.iter().map(|choice| format!("{}: {}.", choice.name, choice.help)));
    }
    all
}

/// `text` broken into lines of at most `width`, each after `indent`.
pub fn filled(text: &str, indent: &str, width: usize) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if column > 0 && column + 1 + len > width {
            lines.push('\n');
            column = 0;
        }
        lines.push_str(if column == 0 { indent } else { " " });
        column += len + if column == 0 { indent.len() } else { 1 };
        lines.push_str(word);
    }
    lines.push('\n');
    lines
}
