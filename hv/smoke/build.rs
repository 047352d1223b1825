//! Links the smoke test with the kernel's linker script.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../arch/src/x86_64/kernel.ld");
    println!("cargo:rerun-if-changed={script}");
    // On the host (`cargo check`, rust-analyzer) there is nothing to place.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo:rustc-link-arg-bins=-T{script}");
    }
}
