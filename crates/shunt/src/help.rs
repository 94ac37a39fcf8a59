//! `shunt help`: the help of a subcommand, or of all options with their ranges, defaults and the
//! ways to set them.

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

/// The language of rules, and where they are. Lines that begin with spaces stay as they are.
pub const RULES: &str = "\
Rules say which connections may use memory and which stay on TCP. Each is a line:

  use shunt|tcp  client|server|*  PROGRAM  ADDR[/BITS]:PORT[-PORT]

The first that matches decides. Where none does, the connection may use memory. A connection uses memory only if both of
its ends may, so it is enough that one end's rules say tcp.

  shunt, tcp     may use memory; stays on TCP
  client         the end that connects; ADDR and PORT are the peer's
  server         the end that accepts; ADDR and PORT are its own
  *              either end
  PROGRAM        the name that the program was called by (argv[0]), without its folder. * stands
                 for anything, ? for one byte. A script has the name of what runs it, such as
                 python3
  ADDR           * for every address, or an IPv4 address, or an IPv6 address in brackets. With
                 /BITS only so many of its first bits count. IPv4 through an IPv6 socket is IPv4
  PORT           * for every port, a port, or a range

A # opens a comment, at the start of a line or after a space. For example:

  use tcp   server *       *:5432            # PostgreSQL, which tcpdump is to see
  use shunt *      redis-* 127.0.0.0/8:*
  use shunt client *       [::1]:8080-8089
  use tcp   *      *       *:*               # nothing else is accelerated

They are taken from one place, the first of these that is there:

  1. a flag of shunt run:            --rules FILE, or --rules 'use tcp * * *:5432; use shunt * * *:*'
  2. the environment:                SHUNT_RULES=FILE, or rules with ; between them
  3. the configuration files:        rules = FILE, or rules with ; between them
  4. the user's file:                $XDG_CONFIG_HOME/shunt.rules, or ~/.config/shunt.rules
  5. the system's file:              /etc/shunt.rules

Only the flag takes a FILE that is not an absolute path. The files of 4 and 5 are not looked for if SHUNT_CONFIG names a
configuration file. SHUNT_RULES=/dev/null is no rules at all. A program reads its rules once, when it starts.

If a line is not understood, or a file that was named cannot be read, all connections of the program stay on TCP: shunt stat
shows that as their reason. shunt run says what is wrong, as FILE:LINE: expected ...; got ..., and starts the program; with
--require it does not, and ends with 125. shunt doctor looks at the rules, too, and says which of them decides:

  shunt doctor --rules redis-cli 127.0.0.1:6379";

pub fn main(topic: Option<&str>) -> ExitCode {
    let text = match topic {
        None => cli::command().render_help().to_string(),
        Some("options") => options_help(),
        Some("rules") => format!("{RULES}\n"),
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
