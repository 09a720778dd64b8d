//! The rule book follows its folder, and a folder that makes no book changes nothing.
//!
//! Every test works on a real folder and waits for the status of the watcher, never for a time.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate::reload::watch::{Handle, Options, Status, Watcher};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::quota::Quota;
use tidegate_rules::load;
use tidegate_rules::stats::RuleStats;
use tokio_util::sync::CancellationToken;

/// Far above what a reload takes: it ends a test that would hang.
const TIMEOUT: Duration = Duration::from_secs(60);
/// No poll within a test: every change is seen by an event.
const NEVER: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_changed_file_applies_by_event() {
    let folder = folder(&[("a.yaml", &rules("d", 5))]);
    let watched = watch(folder.path(), NEVER);
    put(&folder.path().join("a.yaml"), &rules("d", 6));
    watched.until(|_, limit| limit == Some(6)).await;
    // The first change may have been seen while the watcher began; the second has only its event.
    put(&folder.path().join("a.yaml"), &rules("d", 7));
    watched.until(|_, limit| limit == Some(7)).await;
}

#[tokio::test]
async fn a_file_in_a_new_folder_applies_and_goes_again() {
    let folder = folder(&[("a.yaml", &rules("other", 5))]);
    let watched = watch(folder.path(), Duration::from_millis(20));
    fs::create_dir(folder.path().join("team")).unwrap();
    put(&folder.path().join("team/b.yml"), &rules("d", 7));
    watched.until(|_, limit| limit == Some(7)).await;
    fs::remove_dir_all(folder.path().join("team")).unwrap();
    watched.until(|_, limit| limit.is_none()).await;
}

#[tokio::test]
async fn a_folder_that_may_be_missing_is_an_empty_one_until_it_is_there() {
    let parent = folder(&[]);
    let path = parent.path().join("rules");
    let missing = Options { may_be_missing: true, ..options(&path, Duration::from_millis(20)) };
    let (watcher, handle) = Watcher::start_anyway(missing);
    assert!(handle.book().is_loaded() && handle.status().error.is_none());
    let stop = CancellationToken::new();
    let running = tokio::spawn(watcher.run(stop.clone()));
    let wait = async |is_there: fn(&Status) -> bool| {
        let mut status = handle.status();
        while !is_there(&status) {
            status = handle.changed_since(&status).await;
        }
    };
    fs::create_dir(&path).unwrap();
    put(&path.join("a.yaml"), &rules("d", 7));
    wait(|status| status.loads_ok == 2).await;
    assert_eq!(handle.book().rules().count(), 1);
    // While there are rules, a folder that is gone changes nothing.
    fs::remove_dir_all(&path).unwrap();
    wait(|status| status.error.is_some()).await;
    assert_eq!(handle.book().rules().count(), 1);
    stop.cancel();
    running.await.unwrap();

    // What is there and cannot be read, or has a mistake, is not missing.
    fs::create_dir(&path).unwrap();
    put(&path.join("a.yaml"), "domain: [");
    let broken = Options { may_be_missing: true, ..options(&path, NEVER) };
    let (_, handle) = Watcher::start_anyway(broken);
    assert!(!handle.book().is_loaded() && handle.status().error.is_some());
    let (_, handle) = Watcher::start_anyway(options(&parent.path().join("none"), NEVER));
    assert!(!handle.book().is_loaded(), "it has to be there");
}

#[tokio::test]
async fn a_bad_file_keeps_the_old_book_and_reports_file_line_and_key() {
    let folder = folder(&[("a.yaml", &rules("d", 5))]);
    let watched = watch(folder.path(), NEVER);
    let bad = rules("d", 6).replace("minute", "fortnight");
    put(&folder.path().join("a.yaml"), &bad);
    let status = watched.until(|status, _| status.error.is_some()).await;
    let error = status.error.unwrap();
    assert!(error.contains("a.yaml:4:24: unit: invalid rate limit unit 'fortnight'"), "{error}");
    assert_eq!((watched.limit(), status.loads_failed), (Some(5), 1));

    put(&folder.path().join("a.yaml"), &rules("d", 8));
    let status = watched.until(|_, limit| limit == Some(8)).await;
    assert_eq!((status.loads_ok, status.loads_failed, status.error), (2, 1, None));
}

#[tokio::test]
async fn a_configmap_swap_applies_by_event() {
    // As the kubelet does: files are links through `..data`, which is replaced by a rename.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, limit) in [("..2024_1", 5), ("..2024_2", 9)] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("a.yaml"), rules("d", limit)).unwrap();
    }
    symlink("..2024_1", at("..data")).unwrap();
    symlink("..data/a.yaml", at("a.yaml")).unwrap();
    let watched = watch(folder.path(), NEVER);
    assert_eq!(watched.limit(), Some(5));
    for (version, limit) in [("..2024_2", 9), ("..2024_1", 5)] {
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        watched.until(|_, now| now == Some(limit)).await;
    }
}

#[tokio::test]
async fn a_folder_that_vanishes_or_empties_keeps_the_old_book() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("rules");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), rules("d", 5)).unwrap();
    let watched = watch(&folder, Duration::from_millis(20));

    fs::remove_file(folder.join("a.yaml")).unwrap();
    let status = watched.until(|status, _| status.error.is_some()).await;
    assert!(status.error.unwrap().contains("holds no rule file any more"));
    assert_eq!(watched.limit(), Some(5));

    fs::remove_dir_all(&folder).unwrap();
    let gone =
        |status: &Status| status.error.as_ref().is_some_and(|e| e.contains("cannot be read"));
    watched.until(|status, _| gone(status)).await;
    assert_eq!(watched.limit(), Some(5));

    let next = parent.path().join("next");
    fs::create_dir(&next).unwrap();
    fs::write(next.join("a.yaml"), rules("d", 6)).unwrap();
    fs::rename(&next, &folder).unwrap();
    watched.until(|status, limit| limit == Some(6) && status.error.is_none()).await;
}

#[tokio::test]
async fn statistics_survive_a_reload_by_id() {
    let folder = folder(&[("a.yaml", &rules("d", 5))]);
    let watched = watch(folder.path(), NEVER);
    let book = watched.handle.book();
    let before = book.find("d", &[Entry { key: "k", value: "v" }]).unwrap().rule;
    RuleStats::add(&before.stats.allowed, 3);
    put(&folder.path().join("a.yaml"), &rules("d", 6));
    watched.until(|_, limit| limit == Some(6)).await;
    // A request that still holds the old book counts into the same numbers.
    RuleStats::add(&before.stats.allowed, 1);
    let book = watched.handle.book();
    let after = book.find("d", &[Entry { key: "k", value: "v" }]).unwrap().rule;
    assert_eq!(after.stats.allowed.load(Ordering::Relaxed), 4);
}

#[tokio::test]
async fn a_file_written_again_unchanged_loads_nothing() {
    let folder = folder(&[("a.yaml", &rules("d", 5))]);
    let watched = watch(folder.path(), Duration::from_millis(5));
    for _ in 0..20 {
        put(&folder.path().join("a.yaml"), &rules("d", 5));
        tokio::task::yield_now().await;
    }
    put(&folder.path().join("a.yaml"), &rules("d", 6));
    let status = watched.until(|_, limit| limit == Some(6)).await;
    assert_eq!((status.loads_ok, status.loads_failed), (2, 0));
}

#[tokio::test]
async fn a_stopped_watcher_ends() {
    let folder = folder(&[("a.yaml", &rules("d", 5))]);
    let (watcher, _) = Watcher::start(options(folder.path(), NEVER)).unwrap();
    let stop = CancellationToken::new();
    let task = tokio::spawn(watcher.run(stop.clone()));
    stop.cancel();
    tokio::time::timeout(TIMEOUT, task).await.expect("the task ends").unwrap();
}

#[test]
fn a_first_load_without_a_folder_is_refused() {
    let error = Watcher::start(options(Path::new("/nowhere/rules"), NEVER)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("/nowhere/rules: cannot be read: "), "{text}");
    assert!(text.ends_with("; check the path and who may read it"), "{text}");
}

struct Watched {
    handle: Handle,
    stop: CancellationToken,
}

impl Watched {
    /// Waits until status and limit satisfy the condition.
    async fn until(&self, wanted: impl Fn(&Status, Option<u32>) -> bool) -> Status {
        let waiting = async {
            let mut status = self.handle.status();
            while !wanted(&status, self.limit()) {
                status = self.handle.changed_since(&status).await;
            }
            status
        };
        let last = || format!("still {:?}, limit {:?}", self.handle.status(), self.limit());
        tokio::time::timeout(TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("{}", last()))
    }

    fn limit(&self) -> Option<u32> {
        let book = self.handle.book();
        let found = book.find("d", &[Entry { key: "k", value: "v" }])?;
        found.rule.limits.first().map(Quota::limit)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn watch(folder: &Path, poll: Duration) -> Watched {
    let (watcher, handle) = Watcher::start(options(folder, poll)).unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(watcher.run(stop.clone()));
    Watched { handle, stop }
}

fn options(folder: &Path, poll: Duration) -> Options {
    let options = Options::new(folder, load::Options::default());
    Options { debounce: Duration::from_millis(5), poll, ..options }
}

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// Writes a file in one step: a reader sees the old one or the new one.
fn put(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    fs::write(&draft, text).unwrap();
    fs::rename(&draft, path).unwrap();
}

fn rules(domain: &str, limit: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: k\n    rate_limit: {{unit: minute, requests_per_unit: {limit}}}\n"
    )
}
