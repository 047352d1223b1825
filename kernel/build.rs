//! Links the kernel with its architecture's linker script, and with the table of the names that it offers
//! to modules, which `cargo xtask` makes between the libraries and this link.

fn main() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../arch/src/x86_64/kernel.ld");
    println!("cargo:rerun-if-changed={script}");
    println!("cargo:rerun-if-env-changed=NOS_EXPORTS");
    // On the host (`cargo check`, rust-analyzer) there is nothing to place.
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "none") {
        println!("cargo:rustc-link-arg-bins=-T{script}");
        // Without it the kernel exports nothing, and says so to whoever would load a module.
        if let Ok(exports) = std::env::var("NOS_EXPORTS") {
            println!("cargo:rustc-link-arg-bins={exports}");
        }
    }
}
