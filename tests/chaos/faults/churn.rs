//! Planned changes: nodes that join, leave and restart while they are asked.

use crate::arena::{Arena, NODES};

pub(super) async fn restart_all(arena: &mut Arena) {
    for place in arena.dice.order(NODES) {
        arena.leave(place).await;
        arena.start(place).await;
        arena.one_view().await;
    }
    tokio::time::sleep(arena.hold).await;
}

pub(super) async fn join(arena: &mut Arena) {
    arena.start(NODES).await;
    tokio::time::sleep(arena.hold).await;
}

pub(super) async fn leave(arena: &mut Arena) {
    let place = arena.draw();
    arena.leave(place).await;
    tokio::time::sleep(arena.hold).await;
}
