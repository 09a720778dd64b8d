//! Nodes that are paused without noticing: a stopped virtual machine, a long garbage collection.
//!
//! No requests are sent to a node while it is stopped, but again as soon as it continues: what it
//! believed to own then is what this is about.

use std::time::Duration;

use crate::arena::Arena;

pub(super) async fn one_for(arena: &mut Arena, time: Duration) {
    let victim = arena.draw();
    arena.load.open(victim, false);
    arena.nodes[victim].pause();
    tokio::time::sleep(time).await;
    arena.nodes[victim].resume();
    arena.load.open(victim, true);
    tokio::time::sleep(arena.hold).await;
}

pub(super) async fn three_for(arena: &mut Arena, time: Duration) {
    let pause = arena.hold / 4;
    arena.hold = pause;
    for _ in 0..3 {
        one_for(arena, time).await;
    }
}
