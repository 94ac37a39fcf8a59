//! The language of rules: what each rule matches, which of several decides, and the messages about
//! invalid lines.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use options::rules::{FILE_MAX, Unusable, in_file, inline, program_name};
use options::*;
use proptest::prelude::*;

/// The path that the rules give an end; `None` if none of them matches.
fn verdict(rules: &str, role: Role, program: &str, ip: &str, port: u16) -> Option<&'static str> {
    let ip = bits_of(ip.parse().unwrap());
    in_file(rules.as_bytes())
        .map(Result::unwrap)
        .find(|rule| rule.is_for(program.as_bytes()) && rule.ends.include(role, &ip, port))
        .map(|rule| if rule.ends.path == PathMode::Tcp { "tcp" } else { "shunt" })
}

/// An address as sockets have it.
fn bits_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The message about a line.
fn complaint(line: &str) -> String {
    in_file(line.as_bytes()).next().unwrap().unwrap_err().to_string()
}

/// Whether `use tcp * * PLACE` matches.
fn at(place: &str, ip: &str, port: u16) -> bool {
    verdict(&format!("use tcp * * {place}"), Role::Client, "any", ip, port).is_some()
}

#[test]
fn the_first_that_matches_decides() {
    let rules = "use tcp * * *:5432\nuse shunt * * *:5000-6000\nuse tcp * * *:*\n";
    let said = |port| verdict(rules, Role::Server, "x", "127.0.0.1", port);
    assert_eq!((said(5432), said(5433), said(80)), (Some("tcp"), Some("shunt"), Some("tcp")));
    assert_eq!(verdict("use tcp client * *:*", Role::Server, "x", "::1", 1), None);
    assert_eq!(verdict("", Role::Server, "x", "::1", 1), None);
}

#[test]
fn roles() {
    for (word, client, server) in [("client", true, false), ("server", false, true), ("*", true, true)] {
        let rule = format!("use tcp {word} * *:*");
        assert_eq!(verdict(&rule, Role::Client, "x", "::1", 1).is_some(), client, "{word}");
        assert_eq!(verdict(&rule, Role::Server, "x", "::1", 1).is_some(), server, "{word}");
    }
}

#[test]
fn programs() {
    let named = |glob: &str, name: &str| {
        verdict(&format!("use tcp * {glob} *:*"), Role::Client, name, "::1", 1).is_some()
    };
    for (glob, yes, no) in [
        ("redis-*", &["redis-server", "redis-"][..], &["redis", "xredis-server", "Redis-cli"][..]),
        ("*", &["x", ""], &[]),
        ("?", &["x"], &["", "xy"]),
        ("*-s*r", &["redis-server", "a-sr", "-s-ser"], &["redis-servers", "sr"]),
        ("nginx", &["nginx"], &["nginx2", "ngin", ""]),
        ("a*b*c", &["abc", "aXbYc", "abbcc"], &["ab", "acb", "abcd"]),
        ("[ab]", &["[ab]"], &["a"]),
    ] {
        assert!(yes.iter().all(|name| named(glob, name)), "{glob}");
        assert!(!no.iter().any(|name| named(glob, name)), "{glob}");
    }
    assert_eq!(program_name(b"/usr/bin/redis-server"), b"redis-server");
    assert_eq!(
        (program_name(b"nginx"), program_name(b""), program_name(b"/")),
        (&b"nginx"[..], &b""[..], &b""[..])
    );
}

#[test]
fn addresses_with_bits() {
    assert!(at("127.0.0.1:80", "127.0.0.1", 80) && !at("127.0.0.1:80", "127.0.0.2", 80));
    assert!(at("127.1.2.3/8:80", "127.255.0.1", 80), "the bits beyond do not count");
    assert!(!at("127.0.0.0/8:80", "128.0.0.1", 80));
    assert!(at("10.0.0.0/31:80", "10.0.0.1", 80) && !at("10.0.0.0/31:80", "10.0.0.2", 80));
    assert!(at("0.0.0.0/0:80", "255.1.1.1", 80) && !at("0.0.0.0/0:80", "::1", 80));
    assert!(at("[::1]:80", "::1", 80) && !at("[::1]:80", "::2", 80));
    assert!(at("[fe80::]/10:*", "febf::1", 80) && !at("[fe80::]/10:*", "fec0::1", 80));
    assert!(at("[::1]/128:80-90", "::1", 90) && !at("[::1]/128:80-90", "::1", 91));
    assert!(at("*:80", "::1", 80) && at("*:80", "1.2.3.4", 80));
}

#[test]
fn ipv4_through_an_ipv6_socket_is_ipv4() {
    assert!(at("127.0.0.0/8:80", "::ffff:127.0.0.1", 80));
    assert!(at("[::ffff:127.0.0.1]:80", "127.0.0.1", 80) && at("[::ffff:127.0.0.0]/104:80", "127.9.9.9", 80));
    assert!(at("[::ffff:0:0]/96:80", "1.2.3.4", 80) && !at("[::ffff:0:0]/96:80", "::1", 80));
    assert!(at("[::]/0:80", "::1", 80) && !at("[::]/0:80", "127.0.0.1", 80));
}

#[test]
fn ports() {
    assert!(at("*:80-90", "::1", 80) && at("*:80-90", "::1", 90));
    assert!(!at("*:80-90", "::1", 79) && !at("*:80-90", "::1", 91));
    assert!(at("*:1-65535", "::1", 65535) && at("*:007", "::1", 7) && at("*:80-80", "::1", 80));
    assert!(at("*:*", "::1", 1) && at("*:*", "::1", 65535));
}

#[test]
fn lines_comments_and_semicolons() {
    let text = "\u{feff}# all\r\n\n  use\ttcp * *  *:1 # one\r\nuse shunt * * *:2";
    let numbers: Vec<_> = in_file(text.as_bytes()).map(|rule| rule.unwrap()).collect();
    assert_eq!(numbers.iter().map(|rule| rule.number).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(numbers[0].text, b"use\ttcp * *  *:1");
    let numbers: Vec<_> = inline(b";use tcp * * *:1 ; use shunt * * *:2;\nuse tcp * * *:3;")
        .map(|rule| rule.unwrap().number)
        .collect();
    assert_eq!(numbers, [2, 3, 5]);
    assert_eq!(
        complaint("use tcp * * *:1; use tcp * * *:2").to_string(),
        "expected a port from 1 to 65535, two of them such as 80-90, or *, behind the :; got \"*:1;\""
    );
}

#[test]
fn each_fault_is_named_with_its_word() {
    let place = "ADDR[/BITS]:PORT[-PORT], such as 127.0.0.1:80, 10.0.0.0/8:80-90, [::1]:80 or *:*";
    let address = "an IPv4 address, an IPv6 address in brackets, or *, before the port";
    let ports = "a port from 1 to 65535, two of them such as 80-90, or *, behind the :";
    for (line, expected, got) in [
        ("log min-level 9", "use", "log"),
        ("use", "shunt or tcp", ""),
        ("use sdp * * *:*", "shunt or tcp", "sdp"),
        ("use tcp both * *:*", "client, server or *", "both"),
        ("use tcp *", "the name of a program, such as nginx, redis-* or *", ""),
        (
            "use tcp * /usr/bin/nginx *:*",
            "the name of a program without its folder, such as nginx, redis-* or *",
            "/usr/bin/nginx",
        ),
        ("use tcp * *", place, ""),
        ("use tcp * * 127.0.0.1", place, "127.0.0.1"),
        ("use tcp * * *", place, "*"),
        ("use tcp * * ::1:80", "an IPv6 address in brackets, such as [::1]:80", "::1:80"),
        ("use tcp * * localhost:80", address, "localhost:80"),
        ("use tcp * * 300.0.0.1:80", address, "300.0.0.1:80"),
        ("use tcp * * 10.1:80", address, "10.1:80"),
        ("use tcp * * [::1:80", address, "[::1:80"),
        ("use tcp * * [::1%lo]:80", address, "[::1%lo]:80"),
        ("use tcp * * */8:80", address, "*/8:80"),
        ("use tcp * * :80", address, ":80"),
        ("use tcp * * 10.0.0.0/33:80", "0 to 32 bits behind the / of an IPv4 address", "10.0.0.0/33:80"),
        ("use tcp * * 10.0.0.0/:80", "0 to 32 bits behind the / of an IPv4 address", "10.0.0.0/:80"),
        ("use tcp * * [::]/129:80", "0 to 128 bits behind the / of an IPv6 address", "[::]/129:80"),
        ("use tcp * * *:0", ports, "*:0"),
        ("use tcp * * *:65536", ports, "*:65536"),
        ("use tcp * * *:http", ports, "*:http"),
        ("use tcp * * *:80-", ports, "*:80-"),
        ("use tcp * * *:+80", ports, "*:+80"),
        ("use tcp * * [::1]", address, "[::1]"),
        ("use tcp * * *:90-80", "a range of ports that begins with the lower one", "*:90-80"),
        ("use tcp * * *:80 81", "the end of the rule", "81"),
    ] {
        let got = if got.is_empty() { "nothing more".into() } else { format!("\"{got}\"") };
        assert_eq!(complaint(line), format!("expected {expected}; got {got}"), "{line}");
    }
}

#[test]
fn a_fault_says_where_and_is_shown_tamed() {
    let faults: Vec<_> = in_file(b"use tcp * * *:1\n\nuse\nuse tcp * * *:2\nuse \x1b[2J\n")
        .filter_map(Result::err)
        .map(|fault| (fault.number, fault.to_string()))
        .collect();
    let said = "expected shunt or tcp; got ";
    assert_eq!(faults, [(3, format!("{said}nothing more")), (5, format!("{said}\"\\u{{1b}}[2J\""))]);
    let path = Text::new(b"/etc/shunt.rules").unwrap();
    let fault = in_file(b"\nuse udp").next().unwrap().unwrap_err();
    assert_eq!(
        Unusable::Line(&path, fault).to_string(),
        "/etc/shunt.rules:2: expected shunt or tcp; got \"udp\""
    );
    assert_eq!(
        Unusable::Unreadable(&path, 13).to_string(),
        "/etc/shunt.rules: the rules cannot be read (error 13)"
    );
    assert_eq!(
        Unusable::TooLong(&path).to_string(),
        format!("/etc/shunt.rules: longer than {FILE_MAX} bytes")
    );
    assert!(complaint(&format!("use {}", "x".repeat(5000))).len() < 400);
}

// ---- the option ----

fn read(env: &[&str], files: &[&str]) -> (RuleSource, Vec<String>) {
    let mut problems = Vec::new();
    let files: Vec<&[u8]> = files.iter().map(|file| file.as_bytes()).collect();
    let options = from_environ(env.iter().map(|entry| entry.as_bytes()), &files, &mut |problem| {
        problems.push(problem.to_string());
    });
    (options.rules, problems)
}

#[test]
fn the_option_has_rules_or_a_path() {
    let text = "use tcp * * *:5432; use shunt * * *:*";
    let inline = RuleSource::Inline(LongText::new(text.as_bytes()).unwrap());
    let file = RuleSource::File(Text::new(b"/my rules").unwrap());
    assert_eq!(read(&[], &[]), (RuleSource::Usual, vec![]));
    assert_eq!(read(&[&format!("SHUNT_RULES={text}")], &[]), (inline, vec![]));
    assert_eq!(read(&["SHUNT_RULES=/my rules"], &[]), (file, vec![]));
    assert_eq!(read(&[], &[&format!("rules = {text} # but")]), (inline, vec![]));
    assert_eq!(read(&["SHUNT_RULES=/my rules"], &[&format!("rules = {text}")]), (file, vec![]));
}

#[test]
fn what_is_wrong_with_the_option_is_told_and_keeps_everything_on_tcp() {
    let kind = "rules, with ; between them, or the absolute path of a file of rules";
    for (value, said) in [
        ("use tcp * * *:1; use udp", "SHUNT_RULES: rule 2: expected shunt or tcp; got \"udp\"".to_string()),
        ("my.rules", format!("SHUNT_RULES=my.rules: must be {kind}")),
        ("", format!("SHUNT_RULES: has no value; must be {kind}")),
    ] {
        assert_eq!(read(&[&format!("SHUNT_RULES={value}")], &[]), (RuleSource::Wrong, vec![said]));
    }
    let many = format!("SHUNT_RULES={}", "use tcp * * *:1;".repeat(256));
    assert_eq!(many.len() - "SHUNT_RULES=".len(), LongText::MAX + 1);
    let (source, said) = read(&[&many], &[]);
    assert_eq!(source, RuleSource::Wrong);
    assert_eq!(said, ["SHUNT_RULES: longer than 4095 bytes; put the rules in a file, and name that"]);
    assert_eq!(read(&[&many[..many.len() - 1]], &[]).1, Vec::<String>::new());
    assert!(read(&[&format!("SHUNT_RULES=/{}", "x".repeat(255))], &[]).1[0].contains("longer than 255"));

    let (source, said) = read(&["HOME=/h"], &["", "\nrules = use tcp"]);
    assert_eq!(source, RuleSource::Wrong);
    assert_eq!(
        said,
        ["/h/.config/shunt.conf:2: rules: rule 1: expected client, server or *; got nothing more"]
    );
    let (source, said) = read(&["SHUNT_RULES=/dev/null"], &["rules = use tcp"]);
    assert!(matches!(source, RuleSource::File(_)) && said.len() == 1, "what is stronger counts");
}

#[test]
fn where_rules_usually_are() {
    let files = |env: &[&str]| {
        rule_files(env.iter().map(|entry| entry.as_bytes())).map(|path| path.map(|path| path.to_string()))
    };
    let system = || Some("/etc/shunt.rules".to_string());
    assert_eq!(files(&[]), [None, system()]);
    assert_eq!(files(&["HOME=/h"]), [Some("/h/.config/shunt.rules".into()), system()]);
    assert_eq!(files(&["HOME=/h", "XDG_CONFIG_HOME=/x"]), [Some("/x/shunt.rules".into()), system()]);
    assert_eq!(files(&["HOME=/h", "SHUNT_CONFIG=/c"]), [None, None]);
}

// ---- any input ----

/// The same as [`options::rules`], written after the definition.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern, name) {
        ([], []) => true,
        ([b'*', rest @ ..], _) => (0..=name.len()).any(|from| glob(rest, &name[from..])),
        ([b'?', rest @ ..], [_, left @ ..]) => glob(rest, left),
        ([byte, rest @ ..], [same, left @ ..]) => byte == same && glob(rest, left),
        _ => false,
    }
}

proptest! {
    #[test]
    fn a_glob_matches_what_its_definition_does(pattern in "[ab*?]{1,8}", name in "[abc]{0,8}") {
        let rule = format!("use tcp * {pattern} *:*");
        let rule = in_file(rule.as_bytes()).next().unwrap().unwrap();
        prop_assert_eq!(rule.is_for(name.as_bytes()), glob(pattern.as_bytes(), name.as_bytes()));
    }

    #[test]
    fn an_address_matches_if_its_first_bits_do(net: u32, ip: u32, bits in 0..=32u32, same in 0..=32u32) {
        // An address that shares `same` bits or more, so that both outcomes are frequent.
        let ip = if same == 0 { ip } else { net & u32::MAX << (32 - same) | ip.checked_shr(same).unwrap_or(0) };
        let place = format!("{}/{bits}:*", Ipv4Addr::from(net));
        let alike = bits == 0 || (net ^ ip) >> (32 - bits) == 0;
        prop_assert_eq!(at(&place, &Ipv4Addr::from(ip).to_string(), 1), alike);
    }

    #[test]
    fn an_ipv6_address_too(net: u128, bits in 0..=128u32, flip in 0..128u32) {
        let place = format!("[{}]/{bits}:*", Ipv6Addr::from(net));
        let ip = Ipv6Addr::from(net ^ 1 << (127 - flip));
        prop_assume!(ip.to_ipv4_mapped().is_none());
        prop_assert_eq!(at(&place, &ip.to_string(), 1), flip >= bits);
    }

    #[test]
    fn no_input_breaks_the_parser(input in "(use|tcp|shunt|client|\\*|:|/|-|\\[|\\]|[0-9a-f.]{1,6}|[ ;\n#]|\\PC){0,30}") {
        for rule in in_file(input.as_bytes()).chain(inline(input.as_bytes())) {
            match rule {
                Ok(rule) => { rule.ends.include(Role::Client, &[0; 16], 1); }
                Err(fault) => { prop_assert!(fault.number > 0 && fault.to_string().starts_with("expected ")); }
            }
        }
    }
}
