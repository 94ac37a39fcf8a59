//! libshunt.so, built: cargo does not build a cdylib for the tests of its package.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Where it is.
pub fn library() -> &'static Path {
    static PATH: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    PATH.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("it is target/tmp");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--locked", "--package", "preload", "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.expect("cargo runs").success(), "libshunt.so does not build");
        target.join("debug/libshunt.so")
    })
}
