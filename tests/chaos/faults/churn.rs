//! Planned changes: nodes that join, leave and restart under load.

use crate::arena::{Arena, NODES};

pub(super) async fn restart_all(arena: &mut Arena) {
    for token in arena.random.order(NODES) {
        arena.leave(token).await;
        arena.start(token).await;
        arena.one_view().await;
    }
    tokio::time::sleep(arena.hold).await;
}

pub(super) async fn join(arena: &mut Arena) {
    arena.start(NODES).await;
    tokio::time::sleep(arena.hold).await;
}

pub(super) async fn leave(arena: &mut Arena) {
    let token = arena.draw();
    arena.leave(token).await;
    tokio::time::sleep(arena.hold).await;
}
