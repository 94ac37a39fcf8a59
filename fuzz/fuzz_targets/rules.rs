//! The library reads rules inside other people's programs, from files and an environment that others control.
//! A finding is a panic, or a rule that does not do what its text says.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;
use options::Role;
use options::rules::{in_file, inline};

fuzz_target!(|input: &[u8]| {
    let (program, text) = input.split_at(input.iter().position(|&byte| byte == 0).unwrap_or(0));
    let mut complaints = String::new();
    for rule in in_file(text).chain(inline(text)) {
        match rule {
            Ok(rule) => {
                let words: Vec<&[u8]> =
                    rule.text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).collect();
                assert_eq!(words.len(), 5);
                assert!(rule.is_for(program) || words[3] != b"*" && words[3] != program);
                for (role, word) in [(Role::Client, b"client"), (Role::Server, b"server")] {
                    let any = words[4] == b"*:*" && (words[2] == b"*" || words[2] == word);
                    assert!(rule.ends.include(role, &[7; 16], 80) || !any);
                }
            }
            Err(fault) => write!(complaints, "{fault}").expect("a String takes everything"),
        }
    }
});
