//! AMD Secure Virtual Machine (APM vol. 2 chapter 15).

mod exit;
pub(crate) mod host;
mod permissions;
pub(crate) mod vcpu;
mod vmcb;
mod world;
