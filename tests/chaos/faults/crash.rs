//! Nodes that are killed and come back.

use crate::arena::Arena;

pub(super) async fn one(arena: &mut Arena) {
    let victim = arena.draw();
    arena.kill(victim);
    tokio::time::sleep(arena.hold).await;
    arena.start(victim).await;
}

/// All at once. What is left then is what stands on the disks.
pub(super) async fn all(arena: &mut Arena) {
    // Longer than `storage.interval`, so that what was counted before stands on the disk.
    tokio::time::sleep(arena.hold).await;
    let running = arena.running();
    for token in &running {
        arena.kill(*token);
    }
    for token in &running {
        arena.nodes[*token].start();
    }
    arena.one_view().await;
    for token in running {
        arena.load.open(token, true);
    }
}
