//! The library's name for programs that are linked with it: it stays as long as their calls mean the same.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.1");
}
