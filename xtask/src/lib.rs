//! What `cargo xtask` is made of.
//!
//! It is a library so that the stories in `tests/` boot nodes with the very code that `cargo xtask up` boots them
//! with: there is one description of the machine, one way to build the boot archive, one reader of the console.
//!
//! | module | |
//! |---|---|
//! | `workspace`, `progress`, `run`, `cleanup` | where things are, what the person sees, how programs are run and ended |
//! | `packages`, `requirements`, `toolchain` | what the machine needs, and how it comes by it |
//! | `kernel`, `symbols`, `guest`, `linux_modules`, `cpio`, `archive`, `disk` | the files a node boots from |
//! | `qemu`, `console`, `qmp`, `node` | a node that runs |
//! | `up`, `terminal`, `test`, `bench`, `fuzz`, `image`, `lint` | the commands |

#![forbid(unsafe_code)]

pub mod archive;
pub mod bench;
pub mod cleanup;
pub mod console;
pub mod cpio;
pub mod disk;
pub mod fuzz;
pub mod guest;
pub mod image;
pub mod kernel;
pub mod link;
pub mod lint;
pub mod linux_modules;
pub mod modules;
pub mod node;
pub mod packages;
pub mod progress;
pub mod qemu;
pub mod qmp;
pub mod requirements;
pub mod run;
pub mod symbols;
pub mod terminal;
pub mod test;
pub mod test_guest;
pub mod toolchain;
pub mod up;
pub mod workspace;
