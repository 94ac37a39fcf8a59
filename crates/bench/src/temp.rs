//! A directory of our own under the machine's temporary one, gone when the run is over.

use crate::error::{Result, failed};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub fn new() -> Result<TempDir> {
        let base = std::env::temp_dir();
        let pid = std::process::id();
        for n in 0..1000 {
            let path = base.join(format!("shunt-bench-{pid}-{n}"));
            // Other users must get through: PostgreSQL does not run as root.
            match std::fs::DirBuilder::new().mode(0o755).create(&path) {
                Ok(()) => {
                    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
                        .map_err(failed(format!("cannot open up {}", path.display())))?;
                    return Ok(TempDir { path });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(failed(format!("cannot make {}", path.display()))(e)),
            }
        }
        Err(failed("no free name for a directory")(base.display()))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What cannot be removed is left for the machine's own cleaning of temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
