//! Programs that cannot be accelerated, or are none: they are named, they run plain, and with
//! `--require` they do not run.

mod util;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use util::{Bed, stderr, stdout};

/// Runs `program` (which ends with 7) plain and with `--require`, and through the doctor; each must
/// say `why`.
fn check(bed: &Bed, program: &Path, why: &str) {
    let program = program.to_str().unwrap();
    let plain = bed.shunt(&["run", "--", program]).output().unwrap();
    assert!(stderr(&plain).contains(why), "{program}: {}", stderr(&plain));
    assert!(stderr(&plain).contains("it runs plain. To do: "), "{}", stderr(&plain));
    assert_eq!(plain.status.code(), Some(7), "{program} did not run");

    let required = bed.shunt(&["run", "--require", "--", program]).output().unwrap();
    assert!(stderr(&required).contains(why) && stderr(&required).contains("not started (--require)"));
    assert_eq!(required.status.code(), Some(125));

    let doctor = bed.shunt(&["doctor", program]).output().unwrap();
    assert!(stdout(&doctor).contains(why), "{}", stdout(&doctor));
    assert_eq!(doctor.status.code(), Some(1));
}

#[test]
fn static_programs() {
    let bed = Bed::new();
    check(&bed, &bed.program("static", &["-static"]), "is statically linked");
    check(&bed, &bed.program("static-pie", &["-static-pie"]), "is statically linked");
}

#[test]
fn setuid_and_setgid_programs() {
    let bed = Bed::new();
    for (name, mode, why) in [("setuid", 0o4755, "it is setuid"), ("setgid", 0o2755, "it is setgid")] {
        let program = bed.program(name, &[]);
        let root = chown(&program, Some(65534), Some(65534)).is_ok();
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let nosuid = rustix::fs::statvfs(&program)
            .is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
        fs::set_permissions(bed.path("."), fs::Permissions::from_mode(0o755)).unwrap();
        if root && !nosuid && !rustix::thread::no_new_privs().unwrap() {
            check(&bed, &program, why.strip_prefix("it ").unwrap());
        } else {
            // The bit changes nothing for its own owner: the linker preloads.
            let output = bed.shunt(&["run", "--", program.to_str().unwrap()]).output().unwrap();
            assert_eq!((output.status.code(), stderr(&output)), (Some(7), String::new()));
        }
    }
}

#[test]
fn a_setuid_bit_that_changes_nothing_is_no_obstacle() {
    let bed = Bed::new();
    let program = bed.program("own", &[]);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let output = bed.shunt(&["run", "--stats", "--", program.to_str().unwrap()]).output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(stderr(&output).contains("(1 process accelerated)"), "{}", stderr(&output));
}

/// One that another dynamic linker starts must not get the library: it may refuse to start it.
#[test]
fn programs_of_another_linker() {
    let bed = Bed::new();
    let loader = bed.path("ld-own.so.1");
    let real = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let real = real.iter().find(|path| Path::new(path).exists()).unwrap();
    std::os::unix::fs::symlink(real, &loader).unwrap();
    let flag = format!("-Wl,--dynamic-linker={}", loader.display());
    check(&bed, &bed.program("other", &[&flag]), "not by glibc's or musl's dynamic linker");
}

#[test]
fn programs_for_another_machine() {
    let bed = Bed::new();
    let program = bed.program("foreign", &[]);
    let mut bytes = fs::read(&program).unwrap();
    bytes[18..20].copy_from_slice(&[0x16, 0]); // e_machine: IBM S/390
    fs::write(&program, bytes).unwrap();
    let output = bed.shunt(&["run", "--", program.to_str().unwrap()]).output().unwrap();
    assert!(stderr(&output).contains("is for another machine"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn what_is_not_found_or_not_executable() {
    let bed = Bed::new();
    let plain = bed.path("plain");
    fs::write(&plain, "x").unwrap();
    let empty = bed.script("bad-interpreter", "#!/nonexistent/sh\n");
    let dir = bed.path("plain").parent().unwrap().to_str().unwrap().to_string();
    for (program, code, said) in [
        ("no-such-program-anywhere", 127, "not found in PATH"),
        ("/no/such/file", 127, "there is no such file"),
        ("", 127, "not found"),
        (plain.to_str().unwrap(), 126, "you may not execute it"),
        (&dir, 126, "it is a directory"),
        ("/dev/null", 126, "it is not a regular file"),
        (empty.to_str().unwrap(), 127, "needs /nonexistent/sh, which is not there"),
    ] {
        for flags in [&["run"][..], &["run", "--stats"]] {
            let output = bed.shunt(flags).args(["--", program]).output().unwrap();
            assert_eq!(output.status.code(), Some(code), "{program}: {}", stderr(&output));
            assert!(stderr(&output).contains(said), "{program}: {}", stderr(&output));
        }
    }
}

#[test]
fn path_is_searched_as_a_shell_does() {
    let bed = Bed::new();
    for dir in ["a", "b"] {
        fs::create_dir(bed.path(dir)).unwrap();
        bed.script(&format!("{dir}/tool"), &format!("#!/bin/sh\necho {dir} $0\n"));
    }
    fs::set_permissions(bed.path("a/tool"), fs::Permissions::from_mode(0o644)).unwrap();
    let path = format!("{}:{}:/bin:/usr/bin", bed.path("a").display(), bed.path("b").display());
    let output = bed.shunt(&["run", "tool"]).env("PATH", &path).output().unwrap();
    assert_eq!(stdout(&output), format!("b {}\n", bed.path("b/tool").display()), "{}", stderr(&output));
    let only_a = format!("{}:/nonexistent", bed.path("a").display());
    let output = bed.shunt(&["run", "tool"]).env("PATH", only_a).output().unwrap();
    assert_eq!(output.status.code(), Some(126));
}

#[test]
fn scripts_are_followed_to_their_interpreter() {
    let bed = Bed::new();
    let interpreter = bed.program("interpreter", &["-static"]);
    let first = bed.script("first", &format!("#!{}\n", interpreter.display()));
    check(&bed, &first, &format!("(which {} runs) ", first.display()));
    let by_env = bed.script("by-env", "#!/usr/bin/env -S interpreter\n");
    let path = format!("{}:/bin:/usr/bin", interpreter.parent().unwrap().display());
    let output = bed.shunt(&["doctor", by_env.to_str().unwrap()]).env("PATH", path).output().unwrap();
    assert!(stdout(&output).contains("is statically linked"), "{}", stdout(&output));

    let without = bed.script("without", "echo $1; exit 7\n");
    for flags in [&["run"][..], &["run", "--stats"]] {
        let output = bed.shunt(flags).arg(&without).arg("arg").output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(7), "arg\n".into()), "{}", stderr(&output));
    }
}

#[test]
fn without_a_library_the_program_runs_plain() {
    let bed = Bed::new();
    let garbage = bed.path("garbage.so");
    fs::write(&garbage, "not a library").unwrap();
    let spaced = bed.path("a b.so");
    fs::copy(bed.library(), &spaced).unwrap();
    for (library, said) in [
        (Path::new("/nonexistent/libshunt.so"), "is not there"),
        (&garbage, "is not an ELF file"),
        (&spaced, "LD_PRELOAD allows no space or colon"),
    ] {
        let run = |flags: &[&str]| bed.shunt(flags).env("SHUNT_LIB", library).output().unwrap();
        let plain = run(&["run", "--", "sh", "-c", "echo \"[$LD_PRELOAD]\""]);
        assert_eq!((plain.status.code(), stdout(&plain)), (Some(0), "[]\n".into()));
        assert!(stderr(&plain).contains(said) && stderr(&plain).contains("runs plain"), "{}", stderr(&plain));
        let required = run(&["run", "--require", "--", "echo", "ran"]);
        assert_eq!((required.status.code(), stdout(&required)), (Some(125), String::new()));
    }
}
