//! The library's name for programs that are linked with it. It stays as long as the meaning of its
//! calls.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvipl.so.1");
}
