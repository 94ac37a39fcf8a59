//! `shunt generate`: writes the man pages and shell completions, from the same tables as the help.
//! Run when a package is made, not by users.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{ArgMatches, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use options::{Opt, TABLE};

use crate::{cli, help};

pub fn main(matches: &ArgMatches) -> ExitCode {
    let dir = matches.get_one::<std::path::PathBuf>("dir").expect("clap requires it");
    let what = matches.get_one::<String>("what").expect("clap requires it");
    let done = std::fs::create_dir_all(dir)
        .and_then(|()| if what == "man" { man_pages(dir) } else { completions(dir) });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("shunt generate: {}: {error}", dir.display());
            ExitCode::FAILURE
        }
    }
}

fn completions(dir: &Path) -> io::Result<()> {
    let mut command = cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "shunt", dir)?;
    }
    Ok(())
}

fn man_pages(dir: &Path) -> io::Result<()> {
    let mut root = cli::command();
    root.build();
    page(&root, "shunt", dir)?;
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        page(command, &format!("shunt-{}", command.get_name()), dir)?;
        for below in command.get_subcommands() {
            page(below, &format!("shunt-{}-{}", command.get_name(), below.get_name()), dir)?;
        }
    }
    for (name, page) in [("shunt.conf.5", options_page()), ("shunt.rules.5", rules_page())] {
        let mut file = File::create(dir.join(name))?;
        page.to_writer(&mut file)?;
        file.flush()?;
    }
    Ok(())
}

fn page(command: &Command, name: &str, dir: &Path) -> io::Result<()> {
    // The usual "exit status" text is for terminals; the page has a section of its own.
    let for_man = command.clone().name(name.to_string()).display_name(name.to_string()).after_help("");
    let man = Man::new(for_man).manual("Shunt").source(format!("shunt {}", env!("CARGO_PKG_VERSION")));
    let mut file = File::create(dir.join(format!("{name}.1")))?;
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    man.render_options_section(&mut file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut file)?;
    }
    let mut rest = Roff::new();
    let status = match name {
        "shunt-run" => Some(cli::EXIT_STATUS),
        _ if name.starts_with("shunt-ether") => Some(cli::ETHER_STATUS),
        _ if name.starts_with("shunt-agent") => Some(cli::AGENT_STATUS),
        _ => None,
    };
    if let Some(status) = status {
        rest.control("SH", ["EXIT STATUS"]);
        for line in status.lines() {
            let (code, meaning) = line.trim().split_once(' ').unwrap_or((line, ""));
            rest.control("TP", []).text([bold(code)]).text([roman(meaning.trim())]);
        }
    }
    rest.control("SH", ["SEE ALSO"]);
    rest.text([
        bold("shunt"),
        roman("(1), "),
        bold("shunt.conf"),
        roman("(5), "),
        bold("shunt.rules"),
        roman("(5), "),
        bold("ld.so"),
        roman("(8)"),
    ]);
    rest.to_writer(&mut file)?;
    file.flush()
}

/// shunt.conf(5): the ways to set options, and each option.
fn options_page() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["shunt.conf", "5", "", concat!("shunt ", env!("CARGO_PKG_VERSION")), "Shunt"]);
    page.control("SH", ["NAME"])
        .text([roman("shunt.conf - the options of Shunt, in files and in the environment")]);
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut page, help::WAYS);
    page.control("SH", ["OPTIONS"]);
    for opt in TABLE.iter().filter(|opt| opt.is_public()) {
        option(&mut page, opt);
    }
    page.control("SH", ["FILES"]);
    page.text([bold("/etc/shunt.conf"), roman(", "), bold("~/.config/shunt.conf")]);
    page.control("SH", ["SEE ALSO"]).text([
        bold("shunt-run"),
        roman("(1), "),
        bold("shunt.rules"),
        roman("(5)"),
    ]);
    page
}

/// shunt.rules(5): the language of rules.
fn rules_page() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["shunt.rules", "5", "", concat!("shunt ", env!("CARGO_PKG_VERSION")), "Shunt"]);
    page.control("SH", ["NAME"])
        .text([roman("shunt.rules - which connections Shunt may move to memory, and which stay on TCP")]);
    page.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut page, help::RULES);
    page.control("SH", ["FILES"]);
    page.text([bold("/etc/shunt.rules"), roman(", "), bold("~/.config/shunt.rules")]);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("shunt-run"),
        roman("(1), "),
        bold("shunt-doctor"),
        roman("(1), "),
        bold("shunt.conf"),
        roman("(5)"),
    ]);
    page
}

/// Paragraphs of help; those that begin with spaces stay as they are.
fn paragraphs(page: &mut Roff, text: &str) {
    for paragraph in text.split("\n\n") {
        let listed = paragraph.starts_with("  ");
        page.control(if listed { "nf" } else { "PP" }, []);
        page.text(paragraph.lines().map(|line| roman(format!("{line}\n"))).collect::<Vec<Inline>>());
        if listed {
            page.control("fi", []);
        }
    }
}

fn option(page: &mut Roff, opt: &Opt) {
    let value = cli::value_name(opt.kind);
    page.control("TP", []);
    page.text([bold(opt.name), roman(" = "), italic(value), roman("    ("), bold(opt.env), roman(")")]);
    for (i, paragraph) in help::paragraphs(opt).into_iter().enumerate() {
        if i > 0 {
            page.control("IP", []);
        }
        page.text([roman(paragraph)]);
    }
}
