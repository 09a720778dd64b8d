//! Counts on disk: what was written is read again, and no damaged file, folder or disk stops a node
//! or makes it count wrongly.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{fs, io};

use proptest::prelude::*;
use redb::backends::InMemoryBackend;
use redb::{Builder, Database, DatabaseError, StorageBackend, TableDefinition};
use tidegate::storage::disk::{ASIDE_MAX, Disk, PathOnDisk};
use tidegate::storage::{Origin, Secret, Snapshots};
use tidegate_limiter::descriptor::Entry;
use tidegate_limiter::engine::reservation::REMEMBERED;
use tidegate_limiter::engine::{AHEAD_MAX, ActorId};
use tidegate_limiter::policy::{Mode, Scope};
use tidegate_limiter::quota::{Algorithm, Quota};
use tidegate_limiter::store::{
    Commit, Counter, Cursor, KeyHash, KeyHasher, OnFull, Options, ReservationId, Settled, Store,
    StoredCounter,
};
use tidegate_limiter::units::{Hits, Span, Timestamp};

const NOW: Timestamp = Timestamp::from_secs(1_767_225_600 + 500);
const ALGORITHMS: [Algorithm; 7] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindowCounter,
    Algorithm::SlidingWindowLog,
    Algorithm::TokenBucket,
    Algorithm::LeakyBucket,
    Algorithm::Gcra,
    Algorithm::FirstHitWindow,
];

// === reading again ===

#[test]
fn counts_of_long_windows_come_back_and_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (before, store) = start(&path);
    for name in 0..50 {
        for algorithm in ALGORITHMS {
            let day = counter(name, algorithm, 86_400, Mode::Strict);
            store.check(&[day], Hits::new(7), NOW);
            store.check(&[counter(name, algorithm, 60, Mode::Strict)], Hits::new(7), NOW);
        }
        let eventual = counter(name, Algorithm::FixedWindow, 86_400, Mode::Eventual);
        store.check_eventual(&[eventual], Hits::new(7), ActorId::new(3), NOW);
        let share = Counter { key: day(name).key.share(), ..day(name) };
        store.check(&[share], Hits::ONE, NOW);
    }
    assert!(!before.round(&store, NOW));
    assert_eq!(before.status().keys, 50 * 8);
    drop(before);

    let (after, restarted) = start(&path);
    assert_eq!(held(&restarted), held_long(&store));
    assert_eq!(after.status().loaded, 50 * 8);
    let verdict = restarted.check(&[day(1)], Hits::PEEK, NOW)[0];
    assert_eq!(verdict.remaining, 93);
}

/// It has no peers to whom it would have to say what it has counted itself.
#[test]
fn a_node_without_peers_reads_its_eventual_counts_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (before, _) = open(&path, Secret::Fresh([1; 16]));
    let store = new_store(100_000);
    before.load(&store, NOW);
    for mode in [Mode::Strict, Mode::Eventual] {
        store.check(&[counter(1, Algorithm::FixedWindow, 86_400, mode)], Hits::new(7), NOW);
    }
    before.round(&store, NOW);
    drop(before);
    let (after, _) = open(&path, Secret::Fresh([2; 16]));
    let restarted = new_store(100_000);
    after.load(&restarted, NOW);
    assert_eq!((after.status().loaded, after.status().skipped), (2, 0));
    assert_eq!(held(&restarted), held(&store));
}

#[test]
fn a_round_writes_what_changed_since_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    for name in 0..1_000 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    store.check(&[day(7)], Hits::ONE, NOW);
    snapshots.round(&store, NOW);
    snapshots.round(&store, NOW);
    let status = snapshots.status();
    assert_eq!((status.keys, status.written, status.failed), (1_000, 1_001, 0));
    drop(snapshots);
    let (_, restarted) = start(&path);
    assert_eq!(used(&restarted, 7), 2);
}

/// A node that is killed would bring it back beside the counters of the next owner.
#[test]
fn a_commit_is_not_known_on_disk_before_a_replica_has_confirmed_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    let of = [day(1)];
    let key = KeyHash::of_reservation(&of, ReservationId(1));
    let commit = Commit { key, cost: Hits::new(5), remembered: REMEMBERED };
    let settled = |store: &Store| {
        store.commit_if(&of, &commit, None, NOW, || true).expect("it is owned").settled
    };
    let awaits_copy = store.awaits_copy(key);
    assert_eq!(settled(&store), Settled::Reported);
    snapshots.round(&store, NOW);
    drop(snapshots);
    let (snapshots, killed) = start(&path);
    assert_eq!(settled(&killed), Settled::Reported, "it is asked for again, and counts");
    drop(snapshots);

    drop(awaits_copy);
    store.enqueue_snapshot(key);
    let (snapshots, _) = start(&path);
    snapshots.round(&store, NOW);
    drop(snapshots);
    let (_, restarted) = start(&path);
    assert_eq!(settled(&restarted), Settled::Again);
}

/// Whatever the rounds before had come to, and however many counters wait.
#[test]
fn an_orderly_end_writes_every_count_and_commit() {
    const MORE_THAN_A_ROUND: u32 = 300_000;
    for commits_in_a_round in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counts.redb");
        let start = || {
            let ((snapshots, _), store) = (open(&path, Secret::Shared(7)), new_store(1_000_000));
            snapshots.load(&store, NOW);
            (snapshots, store)
        };
        let (snapshots, store) = start();
        for name in 0..MORE_THAN_A_ROUND {
            store.check(&[day(name)], Hits::ONE, NOW);
        }
        if commits_in_a_round {
            assert!(snapshots.round(&store, NOW), "there is more");
        }
        // In the part of the store that a round begins with.
        let mut first = Vec::new();
        store.scan(Cursor::default(), NOW, 6, |_| true, &mut first);
        let is_first = |name: &u32| first.iter().any(|it| it.key == day(*name).key);
        let names: Vec<u32> = (0..MORE_THAN_A_ROUND).filter(is_first).collect();
        let commits = |store: &Store| -> Vec<(Settled, u32)> {
            let commit = |name: &u32| {
                let of = [day(*name)];
                let key = KeyHash::of_reservation(&of, ReservationId(1));
                let commit = Commit { key, cost: Hits::new(5), remembered: REMEMBERED };
                let done = store.commit_if(&of, &commit, None, NOW, || true).expect("it is owned");
                (done.settled, used(store, *name))
            };
            names.iter().map(commit).collect()
        };
        assert_eq!(commits(&store), [(Settled::Reported, 6); 6]);
        while snapshots.round(&store, NOW) {}
        drop(snapshots);
        let (_, restarted) = start();
        let held = held_long(&restarted).len();
        assert_eq!(held, MORE_THAN_A_ROUND as usize + 6, "{commits_in_a_round}");
        assert_eq!(commits(&restarted), [(Settled::Again, 6); 6], "{commits_in_a_round}");
    }
}

#[test]
fn what_expired_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    for name in 0..10_000 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    let next_week = NOW.plus(Span::from_secs(7 * 86_400));
    store.check(&[day(1)], Hits::ONE, next_week);
    // Each round sweeps a bounded number of keys, so it takes several.
    let mut rounds = 0;
    while snapshots.status().keys > 1 {
        snapshots.round(&store, next_week);
        rounds += 1;
        assert!(rounds < 10, "{:?}", snapshots.status());
    }
    assert!(rounds > 1);
    drop(snapshots);
    let store = new_store(100_000);
    open(&path, Secret::Shared(7)).0.load(&store, next_week);
    assert_eq!(held(&store).len(), 1);
}

/// A node that starts again would load it, and may have no room for what it is to own then.
#[test]
fn what_the_store_has_dropped_leaves_the_file_and_may_come_back() {
    let (disk, snapshots, store) = with_500_counters();
    let again = store.get(day(7).key, NOW).unwrap();
    for name in 0..100 {
        assert!(store.drop_copy(day(name).key, |_, _| true));
    }
    disk.full.store(true, Ordering::Relaxed);
    snapshots.round(&store, NOW);
    assert_eq!((store.dropped(), snapshots.status().keys), (100, 500), "it is not forgotten");
    disk.full.store(false, Ordering::Relaxed);
    store.merge(again, NOW);
    snapshots.round(&store, NOW);
    assert_eq!((store.dropped(), snapshots.status().keys), (0, 401));
    drop(snapshots);

    let restarted = new_store(100_000);
    Snapshots::open(Box::new(disk), origin(Secret::Shared(7)), NOW).0.load(&restarted, NOW);
    assert_eq!(held(&restarted), held(&store));
    assert_eq!(used(&restarted, 7), 1);
}

#[test]
fn what_other_starts_counted_is_joined_and_nothing_counts_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    store.check(&[day(1)], Hits::new(40), NOW);
    snapshots.round(&store, NOW);
    drop(snapshots);
    let snapshots = open(&path, Secret::Shared(7)).0;
    snapshots.load(&store, NOW);
    snapshots.load(&store, NOW);
    assert_eq!(used(&store, 1), 40);
}

#[test]
fn a_clock_that_was_wrong_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    let ahead = NOW.plus(Span::from_secs(10 * 86_400));
    store.check(&[day(1)], Hits::new(40), ahead);
    store.check(&[day(2)], Hits::new(40), NOW.plus(AHEAD_MAX));
    snapshots.round(&store, NOW);
    drop(snapshots);
    let (snapshots, restarted) = start(&path);
    assert_eq!((snapshots.status().loaded, snapshots.status().skipped), (1, 1));
    assert_eq!((used(&restarted, 1), used(&restarted, 2)), (0, 40));
}

#[test]
fn a_full_store_takes_what_it_has_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    for name in 0..5_000 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    drop(snapshots);
    let small = new_store(1_000);
    let (snapshots, _) = open(&path, Secret::Shared(7));
    snapshots.load(&small, NOW);
    let status = snapshots.status();
    assert!((500..=1_000).contains(&status.loaded), "{status:?}");
    assert_eq!(status.loaded + status.skipped, 5_000);
}

#[test]
fn a_lone_node_reads_its_secret_again_and_no_other_user_can() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (first, secret) = open(&path, Secret::Fresh([1; 16]));
    assert_eq!(secret, Secret::Own([1; 16]));
    drop(first);
    let (_, secret) = open(&path, Secret::Fresh([2; 16]));
    assert_eq!(secret, Secret::Own([1; 16]));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

// === damaged files ===

#[test]
fn a_foreign_file_is_set_aside_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (snapshots, store) = start(&path);
    store.check(&[day(1)], Hits::ONE, NOW);
    snapshots.round(&store, NOW);
    drop(snapshots);
    let (other, _) = open(&path, Secret::Shared(8));
    assert_eq!(other.status().problem, None);
    drop(other);
    let asides = asides(folder.path());
    assert_eq!(asides, [folder.path().join(format!("counts.redb.aside-{}", NOW.as_secs()))]);

    // With the original bytes it is read again.
    fs::rename(&asides[0], &path).unwrap();
    let (_, restarted) = start(&path);
    assert_eq!(used(&restarted, 1), 1);
}

#[test]
fn a_file_of_something_else_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let is_set_aside = |what: &str| {
        let (snapshots, store) = start(&path);
        assert_eq!(snapshots.status().problem, None, "{what}");
        assert_eq!(held(&store), [], "{what}");
        drop(snapshots);
        let asides = asides(folder.path());
        assert_eq!(asides.len(), 1, "{what}");
        fs::remove_file(&asides[0]).unwrap();
        fs::remove_file(&path).unwrap();
    };
    for text in ["x", "{}", &"not a database\n".repeat(10_000)] {
        fs::write(&path, text).unwrap();
        is_set_aside(text.get(..20).unwrap_or(text));
    }
    let others = Database::create(&path).unwrap();
    let transaction = others.begin_write().unwrap();
    transaction.open_table(TableDefinition::<u64, u64>::new("counts")).unwrap();
    transaction.commit().unwrap();
    drop(others);
    is_set_aside("another program's database");
}

#[test]
fn few_files_are_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let disk = PathOnDisk::new(folder.path().join("counts.redb"));
    for second in 0..10 {
        fs::write(disk.path(), "torn").unwrap();
        disk.set_aside(Timestamp::from_secs(second)).unwrap();
    }
    let kept = asides(folder.path());
    let newest = (10 - ASIDE_MAX..10).map(|n| folder.path().join(format!("counts.redb.aside-{n}")));
    assert_eq!(kept, newest.collect::<Vec<_>>());
}

#[test]
fn a_file_cut_off_anywhere_stops_no_node_and_gives_no_wrong_count() {
    let folder = tempfile::tempdir().unwrap();
    let (bytes, counts) = written(&folder.path().join("whole.redb"));
    for length in (0..bytes.len()).step_by(4_096) {
        assert_nothing_wrong(folder.path(), &bytes[..length], &counts);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..Default::default() })]

    /// Wherever bytes changed on disk: each count is the one that was written, or none.
    #[test]
    fn changed_bytes_stop_no_node_and_give_no_wrong_count(
        changes in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..20),
        run in 1_usize..64,
    ) {
        let folder = tempfile::tempdir().unwrap();
        let (mut bytes, counts) = written(&folder.path().join("whole.redb"));
        for (at, flip) in changes {
            let at = at.index(bytes.len());
            bytes.iter_mut().skip(at).take(run).for_each(|byte| *byte ^= flip);
        }
        assert_nothing_wrong(folder.path(), &bytes, &counts);
    }
}

// === folders and disks with errors ===

#[test]
fn a_node_without_a_usable_path_runs_without_storage_and_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let nowhere = folder.path().join("missing/counts.redb");
    for path in [&nowhere, &file.join("counts.redb"), folder.path(), Path::new("/dev/full")] {
        let (snapshots, store) = start(path);
        store.check(&[day(1)], Hits::ONE, NOW);
        assert!(!snapshots.round(&store, NOW));
        let status = snapshots.status();
        assert!(status.problem.is_some() && status.written_at.is_none(), "{}", path.display());
    }
}

#[test]
fn of_two_nodes_with_one_path_the_second_runs_without_storage() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let (first, store) = start(&path);
    let (second, _) = start(&path);
    let problem = second.status().problem.unwrap();
    assert!(problem.contains("give every node a node.data_dir of its own"), "{problem}");
    assert!(asides(folder.path()).is_empty(), "a file in use stays where it is");
    store.check(&[day(1)], Hits::ONE, NOW);
    first.round(&store, NOW);
    drop((first, second));
    assert_eq!(used(&start(&path).1, 1), 1);
}

#[test]
fn a_full_disk_loses_nothing_once_there_is_room() {
    let (disk, snapshots, store) = with_500_counters();
    disk.full.store(true, Ordering::Relaxed);
    for name in 0..2_000 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    for _ in 0..3 {
        assert!(!snapshots.round(&store, NOW));
    }
    let status = snapshots.status();
    assert_eq!((status.keys, status.failed), (500, 3));
    assert!(status.problem.unwrap().contains("No space left"));

    disk.full.store(false, Ordering::Relaxed);
    snapshots.round(&store, NOW.plus(Span::from_secs(3)));
    let status = snapshots.status();
    assert_eq!((status.keys, status.problem), (2_000, None));
    assert_eq!(status.written_at, Some(NOW.plus(Span::from_secs(3))));
    drop(snapshots);

    let restarted = new_store(100_000);
    Snapshots::open(Box::new(disk), origin(Secret::Shared(7)), NOW).0.load(&restarted, NOW);
    assert_eq!(held(&restarted), held(&store));
}

#[test]
fn a_file_that_is_deleted_while_the_node_runs_is_written_anew_once_its_folder_is_there() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("data");
    fs::create_dir(&folder).unwrap();
    let path = folder.join("counts.redb");
    let (snapshots, store) = start(&path);
    for name in 0..500 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    assert_eq!(snapshots.status().problem, None);

    fs::remove_dir_all(&folder).unwrap();
    snapshots.round(&store, NOW);
    assert!(snapshots.status().problem.unwrap().contains("No such file"));
    fs::create_dir(&folder).unwrap();
    while snapshots.round(&store, NOW) {}
    assert_eq!((snapshots.status().keys, snapshots.status().problem), (500, None));
    drop(snapshots);
    assert_eq!(held(&start(&path).1), held(&store));
}

#[test]
fn a_file_that_is_replaced_by_an_earlier_copy_of_itself_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("counts.redb"), folder.path().join("copy"));
    let (snapshots, store) = start(&path);
    store.check(&[day(0)], Hits::ONE, NOW);
    while snapshots.round(&store, NOW) {}
    fs::copy(&path, &copy).unwrap();
    for name in 0..500 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    while snapshots.round(&store, NOW) {}

    fs::rename(&copy, &path).unwrap();
    while snapshots.round(&store, NOW) {}
    assert_eq!((snapshots.status().keys, snapshots.status().problem), (500, None));
    drop(snapshots);
    assert_eq!(held(&start(&path).1), held(&store));
}

#[test]
fn a_file_that_is_torn_while_the_node_runs_is_written_anew_from_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("counts.redb");
    let disk = FullDisk { path: path.clone(), ..FullDisk::default() };
    let (snapshots, _) = Snapshots::open(Box::new(disk.clone()), origin(Secret::Shared(7)), NOW);
    let store = new_store(100_000);
    snapshots.load(&store, NOW);
    for name in 0..500 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    // The write fails and leaves an invalid file.
    disk.full.store(true, Ordering::Relaxed);
    store.check(&[day(1)], Hits::ONE, NOW);
    snapshots.round(&store, NOW);
    disk.full.store(false, Ordering::Relaxed);
    disk.replace(b"torn");
    while snapshots.round(&store, NOW) {}
    assert_eq!((snapshots.status().keys, snapshots.status().problem), (500, None));
}

// === disks and files of the tests ===

/// A disk in memory that can be full.
#[derive(Clone, Debug, Default)]
struct FullDisk {
    path: PathBuf,
    full: Arc<AtomicBool>,
    bytes: Arc<InMemory>,
}

/// The bytes behind all openings of a [`FullDisk`].
#[derive(Debug, Default)]
struct InMemory(parking_lot::RwLock<Arc<InMemoryBackend>>);

#[derive(Debug)]
struct Opening {
    bytes: Arc<InMemoryBackend>,
    full: Arc<AtomicBool>,
}

impl FullDisk {
    fn replace(&self, bytes: &[u8]) {
        let backend = InMemoryBackend::new();
        backend.set_len(bytes.len() as u64).unwrap();
        backend.write(0, bytes).unwrap();
        *self.bytes.0.write() = Arc::new(backend);
    }
}

impl Disk for FullDisk {
    fn open(&self, builder: &Builder) -> Result<Database, DatabaseError> {
        let bytes = self.bytes.0.read().clone();
        builder.create_with_backend(Opening { bytes, full: self.full.clone() })
    }

    fn set_aside(&self, _: Timestamp) -> io::Result<PathBuf> {
        *self.bytes.0.write() = Arc::default();
        Ok(self.path.clone())
    }

    fn is_in_place(&self) -> bool {
        true
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Opening {
    fn room(&self) -> io::Result<()> {
        let full = self.full.load(Ordering::Relaxed);
        if full { Err(io::Error::from_raw_os_error(28)) } else { Ok(()) }
    }
}

impl StorageBackend for Opening {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.bytes.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room().and_then(|()| self.bytes.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.room().and_then(|()| self.bytes.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room().and_then(|()| self.bytes.write(offset, data))
    }
}

/// 500 counters of a hit each that are on a disk, which may become full.
fn with_500_counters() -> (FullDisk, Snapshots, Store) {
    let (disk, store) = (FullDisk::default(), new_store(100_000));
    let opened = Snapshots::open(Box::new(disk.clone()), origin(Secret::Shared(7)), NOW);
    let snapshots = opened.0;
    snapshots.load(&store, NOW);
    for name in 0..500 {
        store.check(&[day(name)], Hits::ONE, NOW);
    }
    snapshots.round(&store, NOW);
    (disk, snapshots, store)
}

fn origin(secret: Secret) -> Origin {
    Origin { cluster: "test".to_owned(), node: "node-1".to_owned(), secret }
}

fn open(path: &Path, secret: Secret) -> (Snapshots, Secret) {
    Snapshots::open(Box::new(PathOnDisk::new(path)), origin(secret), NOW)
}

/// As a node starts.
fn start(path: &Path) -> (Snapshots, Store) {
    let (snapshots, _) = open(path, Secret::Shared(7));
    let store = new_store(100_000);
    snapshots.load(&store, NOW);
    (snapshots, store)
}

fn new_store(keys_max: usize) -> Store {
    Store::new(Options { keys_max, on_full: OnFull::Share, shards: None })
}

fn counter(name: u32, algorithm: Algorithm, window_s: u64, mode: Mode) -> Counter {
    let quota = Quota::simple(algorithm, 100, Span::from_secs(window_s)).unwrap();
    let name = name.to_string();
    let entries = [Entry { key: "user", value: &name }];
    let hash = KeyHasher::new([7; 16]).descriptor("d", &entries);
    Counter { key: hash.counter(&quota, mode, Scope::Region), quota }
}

/// 100 a day.
fn day(name: u32) -> Counter {
    counter(name, Algorithm::FixedWindow, 86_400, Mode::Strict)
}

fn used(store: &Store, name: u32) -> u32 {
    100 - store.check(&[day(name)], Hits::PEEK, NOW)[0].remaining
}

fn held(store: &Store) -> Vec<StoredCounter> {
    let mut found = Vec::new();
    let mut at = Some(Cursor::default());
    while let Some(cursor) = at {
        at = store.scan(cursor, NOW, 1_000, |_| true, &mut found);
    }
    found.sort_by_key(|counted| counted.key);
    found
}

fn held_long(store: &Store) -> Vec<StoredCounter> {
    let mut all = held(store);
    all.retain(|counted| counted.key.is_long() && !counted.key.is_share());
    all
}

/// The bytes of a file that was written twice, and every count that may be read from it.
fn written(path: &Path) -> (Vec<u8>, Vec<StoredCounter>) {
    let (snapshots, store) = start(path);
    for name in 0..300 {
        store.check(
            &[counter(name, ALGORITHMS[name as usize % 6], 86_400, Mode::Strict)],
            Hits::ONE,
            NOW,
        );
    }
    snapshots.round(&store, NOW);
    let mut counts = held(&store);
    for name in 0..100 {
        store.check(
            &[counter(name, ALGORITHMS[name as usize % 6], 86_400, Mode::Strict)],
            Hits::ONE,
            NOW,
        );
    }
    snapshots.round(&store, NOW);
    counts.extend(held(&store));
    drop(snapshots);
    let bytes = fs::read(path).unwrap();
    fs::remove_file(path).unwrap();
    (bytes, counts)
}

/// A node starts with such a file, reads no count that was not written, and can write.
fn assert_nothing_wrong(folder: &Path, bytes: &[u8], counts: &[StoredCounter]) {
    let path = folder.join("counts.redb");
    fs::write(&path, bytes).unwrap();
    let (snapshots, store) = start(&path);
    assert_eq!(snapshots.status().problem, None);
    for found in held(&store) {
        assert!(counts.contains(&found), "{found:?} was never written");
    }
    store.check(&[day(1_000)], Hits::new(9), NOW);
    while snapshots.round(&store, NOW) {}
    assert_eq!(snapshots.status().problem, None);
    drop(snapshots);
    assert_eq!(used(&start(&path).1, 1_000), 9);
    fs::remove_file(&path).unwrap();
    for aside in asides(folder) {
        fs::remove_file(aside).unwrap();
    }
}

fn asides(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut asides: Vec<_> =
        paths.filter(|path| path.to_string_lossy().contains(".aside-")).collect();
    asides.sort();
    asides
}
