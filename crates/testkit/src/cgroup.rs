//! A share of the processors for processes of a test: a cgroup that is removed with its owner.
//!
//! Both versions of the kernel's interface are supported, by whichever has the controller:
//!
//! | version | folder | a half of a core |
//! |---|---|---|
//! | 2 | `/sys/fs/cgroup` | `cpu.max`: `50000 100000` |
//! | 1 | `/sys/fs/cgroup/cpu` | `cpu.cfs_quota_us`: `50000` |

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A group of processes that may use a part of one core together.
#[derive(Debug)]
pub struct Cgroup {
    folder: PathBuf,
}

const V1: &str = "/sys/fs/cgroup/cpu";
const V2: &str = "/sys/fs/cgroup";
/// The time by which the kernel counts.
const PERIOD_US: u64 = 100_000;
/// A process that was killed leaves its group a moment later.
const REMOVAL_ATTEMPTS: u32 = 100;
const REMOVAL_PAUSE: Duration = Duration::from_millis(10);

impl Cgroup {
    /// A group of its own below the root, for `percent` of one core.
    ///
    /// # Errors
    ///
    /// This machine does not let the test make one: the reason.
    pub fn with_percent_of_a_core(name: &str, percent: u64) -> Result<Self, String> {
        let folder_name = format!("tidegate-{}-{name}", std::process::id());
        let quota = PERIOD_US * percent / 100;
        let (root, file, value) = if Path::new(V1).join("cpu.cfs_quota_us").exists() {
            (V1, "cpu.cfs_quota_us", quota.to_string())
        } else {
            // Fails where it is enabled already and processes are in the root; what counts is
            // whether the new group has the file.
            let _ = fs::write(Path::new(V2).join("cgroup.subtree_control"), "+cpu");
            (V2, "cpu.max", format!("{quota} {PERIOD_US}"))
        };
        let folder = Path::new(root).join(folder_name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self { folder };
        let file = group.folder.join(file);
        fs::write(&file, value).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(group)
    }

    /// Moves a process with all its threads into it.
    pub fn add(&self, pid: u32) {
        fs::write(self.folder.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// How many periods the processes spent partly waiting, and how many there were.
    pub fn throttled(&self) -> String {
        let stat = fs::read_to_string(self.folder.join("cpu.stat")).unwrap();
        let of = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
                .unwrap_or_default()
        };
        format!("{} of {} periods", of("nr_throttled "), of("nr_periods "))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for _ in 0..REMOVAL_ATTEMPTS {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(REMOVAL_PAUSE);
        }
        eprintln!("{} is left: it has processes", self.folder.display());
    }
}
