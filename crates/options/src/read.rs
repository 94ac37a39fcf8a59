//! Reading options from the environment and from configuration files, in their order of precedence:
//! environment, the user's file, the system's file, the defaults. (`shunt run` puts its flags into
//! the environment of the program.)

use crate::kind::Kind;
use crate::problem::{Fault, Problem, Source};
use crate::settings::RuleSource;
use crate::table::{Opt, Options, TABLE};
use crate::text::{Text, without_comment};

/// The paths of the configuration files to read, the weakest first; see [`config_files`].
pub type ConfigFiles = [Option<Text>; 2];

/// The file of the system's administrator.
const SYSTEM_FILE: Text = Text::new(b"/etc/shunt.conf").unwrap();
const SYSTEM_RULES: Text = Text::new(b"/etc/shunt.rules").unwrap();

/// The option of this name: `promote-after`.
pub fn find(name: &str) -> Option<&'static Opt> {
    TABLE.iter().find(|opt| opt.name == name)
}

/// Which files to read: the system's, then the user's (`$XDG_CONFIG_HOME/shunt.conf`, or
/// `~/.config/shunt.conf`). If `SHUNT_CONFIG` is set, only the file that it names. That file must
/// exist: report it with [`Problem::unreadable`] if it does not.
pub fn config_files<'a>(env: impl Iterator<Item = &'a [u8]>) -> ConfigFiles {
    Environment::collect(env, &mut |_| ()).files()
}

/// Where rules are if [`Options::rules`] names no place: the first of these files that exists has
/// them all. They lie beside the configuration files, the user's before the system's. There are
/// none if `SHUNT_CONFIG` is set.
pub fn rule_files<'a>(env: impl Iterator<Item = &'a [u8]>) -> [Option<Text>; 2] {
    let env = Environment::collect(env, &mut |_| ());
    if env.value("config").is_some() {
        return [None, None];
    }
    [env.user_file(b"/shunt.rules", b"/.config/shunt.rules"), Some(SYSTEM_RULES)]
}

/// All options. `env` gives `NAME=VALUE` strings; `files` is the content of each of
/// [`config_files`], in that order, empty for one that does not exist. A setting that is not
/// understood goes to `problem` and changes nothing; only wrong rules count, as
/// [`RuleSource::Wrong`].
pub fn from_environ<'a>(
    env: impl Iterator<Item = &'a [u8]>,
    files: &[&[u8]],
    problem: &mut dyn FnMut(Problem),
) -> Options {
    let mut options = Options::DEFAULT;
    change(&mut options, env, files, problem);
    options
}

/// The same for options that have their defaults, where they are: they are large.
pub fn change<'a>(
    options: &mut Options,
    env: impl Iterator<Item = &'a [u8]>,
    files: &[&[u8]],
    problem: &mut dyn FnMut(Problem),
) {
    let env = Environment::collect(env, problem);
    let paths = env.files();
    for (i, content) in files.iter().enumerate().filter(|(_, content)| !content.is_empty()) {
        read_file(options, paths.get(i).copied().flatten(), content, problem);
    }
    for (opt, value) in TABLE.iter().zip(env.values) {
        if let Some(value) = value {
            set(options, opt, value, Source::Env, opt.env.as_bytes(), problem);
        }
    }
}

/// Variables of the command and of the Python package, which mean nothing to the library.
const NOT_OPTIONS: [&[u8]; 5] = [
    b"SHUNT_BENCH_PYTHON",
    b"SHUNT_ETHER_HOST",
    b"SHUNT_FILTERS_LOG",
    b"SHUNT_FILTERS_TICKET",
    b"SHUNT_PYTHON",
];

/// The parts of an environment that matter here, picked out in one pass.
struct Environment<'a> {
    values: [Option<&'a [u8]>; TABLE.len()],
    config_home: Option<&'a [u8]>,
    home: Option<&'a [u8]>,
}

impl<'a> Environment<'a> {
    fn collect(env: impl Iterator<Item = &'a [u8]>, problem: &mut dyn FnMut(Problem)) -> Self {
        let mut this = Environment { values: [None; TABLE.len()], config_home: None, home: None };
        for entry in env {
            let Some(equals) = entry.iter().position(|&byte| byte == b'=') else { continue };
            let (name, value) = (&entry[..equals], &entry[equals + 1..]);
            let slot = match name {
                b"HOME" => &mut this.home,
                b"XDG_CONFIG_HOME" => &mut this.config_home,
                _ if !name.starts_with(b"SHUNT_") || NOT_OPTIONS.contains(&name) => continue,
                _ => match TABLE.iter().position(|opt| opt.env.as_bytes() == name) {
                    Some(i) => &mut this.values[i],
                    None => {
                        problem(Problem { source: Source::Env, name, value, fault: Fault::Unknown });
                        continue;
                    }
                },
            };
            slot.get_or_insert(value); // the first of two counts, as for getenv()
        }
        this
    }

    fn files(&self) -> ConfigFiles {
        if let Some(path) = self.value("config") {
            // A bad path is reported by from_environ, as any bad value is.
            return [Text::new(path).filter(|_| path.starts_with(b"/")), None];
        }
        [Some(SYSTEM_FILE), self.user_file(b"/shunt.conf", b"/.config/shunt.conf")]
    }

    /// The value of the option with this name.
    fn value(&self, name: &str) -> Option<&'a [u8]> {
        TABLE.iter().position(|opt| opt.name == name).and_then(|i| self.values[i])
    }

    /// A file of the user's, relative to `$XDG_CONFIG_HOME` or else to `$HOME`.
    fn user_file(&self, in_config: &[u8], in_home: &[u8]) -> Option<Text> {
        let absolute = |dir: &&[u8]| dir.starts_with(b"/");
        match self.config_home.filter(absolute) {
            Some(dir) => Text::joined(dir, in_config),
            None => self.home.filter(absolute).and_then(|dir| Text::joined(dir, in_home)),
        }
    }
}

fn read_file(options: &mut Options, path: Option<Text>, content: &[u8], problem: &mut dyn FnMut(Problem)) {
    let content = content.strip_prefix(b"\xef\xbb\xbf").unwrap_or(content);
    for (number, line) in (1u32..).zip(content.split(|&byte| byte == b'\n')) {
        let source = Source::File { path, line: number };
        let line = without_comment(line).trim_ascii();
        if line.is_empty() {
            continue;
        }
        let Some(equals) = line.iter().position(|&byte| byte == b'=') else {
            problem(Problem { source, name: line, value: b"", fault: Fault::Syntax });
            continue;
        };
        let (name, value) = (line[..equals].trim_ascii(), line[equals + 1..].trim_ascii());
        let fault = match TABLE.iter().find(|opt| opt.name.as_bytes() == name) {
            Some(opt) if opt.in_file() => {
                set(options, opt, value, source, name, problem);
                continue;
            }
            Some(_) => Fault::NotInFile,
            None if name.is_empty() => Fault::Syntax,
            None => Fault::Unknown,
        };
        problem(Problem { source, name, value, fault });
    }
}

fn set(
    options: &mut Options,
    opt: &Opt,
    value: &[u8],
    source: Source,
    name: &[u8],
    problem: &mut dyn FnMut(Problem),
) {
    match opt.kind.parse(value) {
        Ok(parsed) => (opt.set)(options, parsed),
        Err(fault) => {
            if matches!(opt.kind, Kind::Rules) {
                options.rules = RuleSource::Wrong;
            }
            problem(Problem { source, name, value, fault });
        }
    }
}
