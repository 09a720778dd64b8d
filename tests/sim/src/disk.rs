//! The disk of a node, which its processes use one after the other.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tidegate_cluster::consensus::Disk;

/// What was synced survives a crash; a write in progress is lost.
#[derive(Clone, Debug, Default)]
pub(crate) struct SimDisk(Arc<Mutex<Option<Vec<u8>>>>);

/// How long a write takes until it is synced.
const SYNC: Duration = Duration::from_millis(2);

#[async_trait]
impl Disk for SimDisk {
    async fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    async fn save(&self, record: Vec<u8>) -> io::Result<()> {
        tokio::time::sleep(SYNC).await;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    fn is_durable(&self) -> bool {
        true
    }
}
