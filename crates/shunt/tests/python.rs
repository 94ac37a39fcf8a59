//! Subcommands that are Python's: which Python is taken, and what is said if none has the package.

mod util;

use util::{Bed, stderr, stdout};

/// Stands in for a Python that has the package, or has not: answers the question for it with its
/// status, else tells its arguments.
fn python(bed: &Bed, name: &str, has: bool) -> std::path::PathBuf {
    let dir = bed.path(name);
    std::fs::create_dir_all(&dir).unwrap();
    let status = i32::from(!has);
    bed.script(
        &format!("{name}/python3"),
        &format!("#!/bin/sh\ncase $2 in -c) exit {status} ;; *) echo {name}: \"$@\"; exit 5 ;; esac\n"),
    )
}

#[test]
fn the_python_that_is_named_takes_the_place_of_the_command() {
    let bed = Bed::new();
    let named = python(&bed, "named", true);
    let path = python(&bed, "in-path", true);
    for (args, told) in [
        (&["microscope", "a slide.svs", "--port", "0"][..], "-P -m shunt.microscope a slide.svs --port 0"),
        (&["filters", "--help"], "-P -m shunt.filters --help"),
        (&["help", "microscope"], "-P -m shunt.microscope --help"),
    ] {
        let output =
            bed.shunt(args).env("SHUNT_PYTHON", &named).env("PATH", path.parent().unwrap()).output().unwrap();
        assert_eq!((stdout(&output).trim(), output.status.code()), (&*format!("named: {told}"), Some(5)));
    }
}

#[test]
fn else_the_one_in_path_and_what_to_install_is_said() {
    let bed = Bed::new();
    let (with, without) = (python(&bed, "with", true), python(&bed, "without", false));
    let run = |path: &std::path::Path, named: &str| {
        bed.shunt(&["microscope"])
            .env("PATH", path.parent().unwrap())
            .env("SHUNT_PYTHON", named)
            .output()
            .unwrap()
    };
    assert_eq!(stdout(&run(&with, "")).trim(), "with: -P -m shunt.microscope");
    let output = run(&without, "");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains(&format!("{} has no module shunt.microscope", without.display())), "{said}");
    assert!(said.contains("pip install './python[microscope]'"), "{said}");
    // Who names one means that one.
    let said = stderr(&run(&with, "/nowhere/python3"));
    assert!(said.contains("SHUNT_PYTHON=/nowhere/python3: there is no such file"), "{said}");
    let said = stderr(&run(&bed.path("nothing/python3"), ""));
    assert!(said.contains("there is no python3 in PATH"), "{said}");
}
