//! The world switch, in a kernel of its own (`hv/smoke`) whose guests are a few instructions each.

use std::path::Path;

use anyhow::{Context as _, Result};
use stories::smoke;

const PACKAGE: &str = "hv-smoke";
const ALL_PASSED: &str = "hv-smoke: 18 passed, 0 failed";

fn boot(kernel: &Path, cpus: &str) -> Result<String> {
    let kernel = kernel.to_str().context("a path in UTF-8")?;
    let machine = ["-machine", "q35", "-cpu", "max,+svm", "-smp", cpus, "-m", "256M"];
    smoke::boot(&[&machine[..], &["-kernel", kernel]].concat())
}

fn passes_every_check_on(cpus: &str) {
    let text = boot(&smoke::kernel(PACKAGE).unwrap(), cpus).unwrap();
    assert!(text.contains(ALL_PASSED), "{text}");
}

#[test]
fn guests_on_the_only_cpu() {
    passes_every_check_on("1");
}

#[test]
fn guests_beside_the_first_cpu() {
    passes_every_check_on("2");
}

#[test]
fn with_overflow_and_undefined_behaviour_checks() {
    let text = boot(&smoke::checked_kernel(PACKAGE).unwrap(), "2").unwrap();
    assert!(text.contains(ALL_PASSED), "{text}");
}

#[test]
fn a_processor_without_svm_is_named() {
    let kernel = smoke::kernel(PACKAGE).unwrap();
    let kernel = kernel.to_str().unwrap();
    let machine = ["-machine", "q35", "-cpu", "max,-svm", "-m", "256M", "-kernel", kernel];
    let text = smoke::boot(&machine).unwrap();
    assert!(text.contains("this processor offers no AMD SVM"), "{text}");
}
