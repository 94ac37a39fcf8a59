//! The library reads options inside other people's programs, from an environment and files that they control.
//! A finding is a panic: that would end the program.
#![no_main]

use std::fmt::Write;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let mut parts = input.split(|&byte| byte == 0);
    let files: [&[u8]; 2] = [parts.next().unwrap_or_default(), parts.next().unwrap_or_default()];
    let mut complaints = String::new();
    options::from_environ(parts, &files, &mut |problem| {
        write!(complaints, "{problem}").expect("a String takes everything");
    });
});
