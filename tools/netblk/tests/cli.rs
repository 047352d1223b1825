//! The command, as a user runs it.

mod support;

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use support::{Behaviour, FakeServer, image};

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }
}

fn netblk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_netblk")).args(arguments).stdin(Stdio::null()).output().unwrap()
}

#[track_caller]
fn succeeds(arguments: &[&str]) -> String {
    let output = netblk(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    assert!(error.is_empty(), "no bar where nobody sees it: {error}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(arguments: &[&str], code: i32) -> String {
    let output = netblk(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn info_for_people_and_for_programs() {
    let server = FakeServer::start(image(1, 3 << 20), Behaviour::default());
    let text = succeeds(&["info", &server.target()]);
    assert!(
        text.contains("fake0") && text.contains("3 MiB (3145728 bytes)") && text.contains("read and write")
    );
    let json = json(&succeeds(&["info", &server.target(), "--json"]));
    assert_eq!(json["size_bytes"], 3 << 20);
    assert_eq!(json["read_only"], false);
    assert_eq!(json["max_read_bytes"], 16384);
}

#[test]
fn an_image_goes_in_and_comes_out() {
    let scratch = Scratch::new("an_image_goes_in_and_comes_out");
    let server = FakeServer::start(vec![0; 2 << 20], Behaviour::default());
    let content = image(2, 700_001);
    let input = scratch.file("in.img", &content);
    let target = server.target();
    let wrote = json(&succeeds(&["write", &target, input.to_str().unwrap(), "--offset", "64k", "--json"]));
    assert_eq!(wrote["bytes"], 700_001);
    assert_eq!(server.seen().unflushed_writes, 0);

    let output = scratch.0.join("out.img");
    let output_name = output.to_str().unwrap();
    succeeds(&["read", &target, output_name, "--offset", "65536", "--length", "700001"]);
    assert!(fs::read(&output).unwrap() == content);

    let piped = netblk(&["read", &target, "--offset", "64k", "--length", "700001", "--window", "3"]);
    assert!(piped.status.success() && piped.stdout == content);

    succeeds(&["verify", &target, "--read-only", output_name, "--offset", "64k"]);
    let mut differing = content;
    differing[600_000] ^= 1;
    let differing = scratch.file("differing.img", &differing);
    let error = fails(&["verify", &target, "--read-only", differing.to_str().unwrap(), "--offset", "64k"], 1);
    assert!(error.contains(&format!("at byte {}", 65536 + 600_000)), "{error}");
}

#[test]
fn standard_input_is_written() {
    let server = FakeServer::start(vec![0; 1 << 20], Behaviour::default());
    let mut child = Command::new(env!("CARGO_BIN_EXE_netblk"))
        .args(["write", &server.target(), "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let content = image(3, 100_000);
    child.stdin.take().unwrap().write_all(&content).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(server.image()[..100_000] == content);
}

#[test]
fn verify_and_flush() {
    let content = image(4, 1 << 20);
    let server = FakeServer::start(content.clone(), Behaviour::default());
    let target = server.target();
    let verified = json(&succeeds(&["verify", &target, "--json"]));
    assert_eq!((&verified["verified"], &verified["bytes"]), (&true.into(), &(1 << 20).into()));
    assert!(server.image() == content);
    let text = succeeds(&["verify", &target, "--length", "128k", "--seed", "7", "--overwrite"]);
    assert!(text.contains("seed 7"), "{text}");
    assert!(server.image() != content);
    assert!(succeeds(&["flush", &target]).contains("durable"));
}

#[test]
fn bench_gives_figures_and_writes_only_when_told() {
    let content = image(5, 4 << 20);
    let server = FakeServer::start(content.clone(), Behaviour::default());
    let target = server.target();
    let figures = json(&succeeds(&["bench", &target, "--seconds", "0.3", "--window", "4", "--json"]));
    assert!(figures["iops"].as_f64().unwrap() > 100.0);
    assert!(figures["p50_us"].as_f64().unwrap() > 1.0 && figures["mean_us"].as_f64().unwrap() > 1.0);
    assert!(figures["p99_us"].as_f64().unwrap() >= figures["p50_us"].as_f64().unwrap());
    assert!(server.image() == content);
    let text = succeeds(&["bench", &target, "--seconds", "0.2", "--destructive-writes", "--length", "1M"]);
    assert!(text.contains("random writes"));
    assert!(server.image() != content && server.image()[1 << 20..] == content[1 << 20..]);
}

#[test]
fn errors_say_what_to_do_and_end_with_their_code() {
    let server = FakeServer::start(image(6, 1 << 20), Behaviour { read_only: true, ..Behaviour::default() });
    let target = server.target();
    assert!(fails(&["info", "nonsense"], 2).contains("HOST:PORT"));
    assert!(fails(&["info", "127.0.0.1:70000"], 2).contains("no target"));
    assert!(fails(&["read", &target, "/dev/null", "--length", "2M"], 2).contains("do not lie on the device"));
    assert!(fails(&["read", &target, "/dev/null", "--offset", "1x"], 2).contains("is no size"));
    assert!(fails(&["write", &target, "/dev/null/none"], 5).contains("reading /dev/null/none"));
    assert!(fails(&["verify", &target], 2).contains("read-only"));
    assert!(fails(&["bench", &target, "--block", "100"], 2).contains("whole sectors"));
    assert!(fails(&["bench", &target, "--window", "0"], 2).contains("--window"));
    assert!(fails(&["read", &target, "/nowhere/at/all"], 5).contains("creating /nowhere/at/all"));
}

#[test]
fn bench_sweeps_mixes_draws_and_leaves_its_figures() {
    let scratch = Scratch::new("bench_sweeps_mixes_draws_and_leaves_its_figures");
    let server = FakeServer::start(image(7, 4 << 20), Behaviour::default());
    let (svg, figures) = (scratch.0.join("bench.svg"), scratch.0.join("bench.json"));
    let text = succeeds(&[
        "bench",
        &server.target(),
        "--seconds",
        "0.2",
        "--sweep",
        "1,8",
        "--block",
        "512,1k",
        "--destructive-writes",
        "--write-share",
        "40",
        "--svg",
        svg.to_str().unwrap(),
        &format!("--json={}", figures.display()),
    ]);
    assert_eq!(text.matches("random reads and 40 % writes").count(), 4, "{text}");
    assert!(text.contains("p99.9") && text.contains("window 8"));
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.contains("latency, microseconds") && drawn.contains("512 B writes, window 8"));
    let figures = json(&fs::read_to_string(figures).unwrap());
    let runs = figures["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        assert_eq!(run["op"], "mix");
        let figure = |name: &str| run[name].as_f64().unwrap();
        assert!(figure("p50_us") <= figure("p90_us") && figure("p90_us") <= figure("p99_us"));
        assert!(figure("p99_us") <= figure("p999_us") && figure("p999_us") <= figure("max_us"));
        assert!(
            run["reads"]["p50_us"].is_f64() && run["writes"]["percentiles_us"].as_array().unwrap().len() > 10
        );
    }
    // No window of the sweep may be too large for the range; nothing is measured before that is known.
    assert!(
        fails(&["bench", &server.target(), "--length", "16k", "--sweep", "1,64"], 2).contains("window of 64")
    );
}

#[test]
fn a_range_is_zeroed_and_only_that() {
    let content = image(8, 1 << 20);
    let server = FakeServer::start(content.clone(), Behaviour::default());
    let target = server.target();
    let text = succeeds(&["zero", &target, "--offset", "64k", "--length", "100k"]);
    assert!(text.contains("zeroed and flushed 100 KiB"), "{text}");
    let (start, end) = (64 << 10, 164 << 10);
    let found = server.image();
    assert!(found[start..end].iter().all(|&byte| byte == 0));
    assert!(found[..start] == content[..start] && found[end..] == content[end..]);
    assert_eq!(server.seen().unflushed_writes, 0);
    // Version 1 has no DISCARD.
    assert!(fails(&["discard", &target, "--offset", "0", "--length", "4k"], 2).contains("no discard"));
    assert!(fails(&["zero", &target, "--offset", "0", "--length", "2M"], 2).contains("ends before"));
    assert!(fails(&["zero", &target, "--length", "4k"], 2).contains("--offset"));
}

#[test]
fn keys_come_from_files_and_are_never_spoken_in_version_1() {
    let scratch = Scratch::new("keys_come_from_files_and_are_never_spoken_in_version_1");
    let server = FakeServer::start(image(9, 1 << 20), Behaviour::default());
    let target = server.target();
    let short = scratch.file("short", b"0123\n");
    let error = fails(&["info", &target, "--key-file", short.to_str().unwrap()], 2);
    assert!(error.contains("the key in") && !error.contains("0123"), "{error}");
    let key = scratch.file("key", format!("{}\n", "5a".repeat(32)).as_bytes());
    let key = key.to_str().unwrap();
    assert!(fails(&["info", &target, "--key-file", key, "--protocol", "1"], 2).contains("knows no key"));
    // This server speaks version 1 only: with a key, that is no answer.
    let error = fails(&["info", &target, "--key-file", key, "--retries", "2"], 3);
    assert!(error.contains("no answer"), "{error}");
    assert!(fails(&["info", &target, "--key-file", "/nowhere/key"], 5).contains("reading the key"));
    let by_environment = Command::new(env!("CARGO_BIN_EXE_netblk"))
        .args(["info", &target])
        .env("NETBLK_KEY_FILE", "/nowhere/key")
        .output()
        .unwrap();
    assert_eq!(by_environment.status.code(), Some(5));
    assert_eq!(json(&succeeds(&["info", &target, "--json"]))["protocol"], 1);
    assert_eq!(json(&succeeds(&["info", &target, "--protocol", "1", "--json"]))["protocol"], 1);
}

#[test]
fn shells_and_man_learn_what_there_is() {
    for shell in ["bash", "zsh", "fish"] {
        let text = succeeds(&["completions", shell]);
        for word in ["bench", "discard", "write-share", "key-file"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
    let page = succeeds(&["man"]);
    assert!(page.contains(".TH netblk 1") && page.contains("NETBLK BENCH") && page.contains("write\\-share"));
}
