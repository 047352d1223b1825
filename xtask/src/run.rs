//! Running other programs.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::progress::Step;

/// How much of a program's output is shown when it fails.
const TAIL_LINES: usize = 60;

/// Runs a program to its end. Its output, both streams as they come, is the step's note; when it fails, the end of
/// that is in the error.
pub fn run(step: &Step, command: &mut Command) -> Result<()> {
    let shown = show(command);
    let (reader, writer) = std::io::pipe().context("making a pipe")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer.try_clone().context("sharing a pipe")?)
        .stderr(writer)
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    // The command holds the pipe's other end as long as it lives.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut tail = VecDeque::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = String::from_utf8_lossy(&line.with_context(|| format!("reading what {shown} prints"))?)
            .trim_end()
            .to_owned();
        if line.is_empty() {
            continue;
        }
        step.note(&line);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(line);
    }
    let status = child.wait().with_context(|| format!("waiting for {shown}"))?;
    if !status.success() {
        let mut text = String::new();
        for line in tail {
            let _ = write!(text, "\n    {line}");
        }
        bail!("{shown} ended with {status}:{text}");
    }
    Ok(())
}

/// Runs a program and returns what it prints on standard output. Its standard error is in the error if it fails.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("starting {shown}"))?;
    if !output.status.success() {
        bail!("{shown} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Whether a program is installed: found in one of the folders of PATH.
pub fn installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The command as a person would type it.
pub fn show(command: &Command) -> String {
    let quoted = |word: &OsStr| {
        let word = word.to_string_lossy();
        let plain = !word.is_empty()
            && word.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_./=,:+@%".contains(letter));
        if plain { word.into_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
    };
    let mut text = quoted(command.get_program());
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&quoted(argument));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_command_and_what_it_said() {
        let step = Step::begin("a program that fails");
        let error =
            run(&step, Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).unwrap_err();
        let shown = error.to_string();
        assert!(
            shown.starts_with("sh -c 'echo out; echo err >&2; exit 3' ended with exit status: 3"),
            "{shown}"
        );
        assert!(shown.contains("\n    out") && shown.contains("\n    err"), "{shown}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = output(&mut Command::new("/nonexistent/program")).unwrap_err();
        assert_eq!(error.to_string(), "starting /nonexistent/program");
        assert!(installed("sh") && !installed("no-such-program-at-all"));
    }
}
