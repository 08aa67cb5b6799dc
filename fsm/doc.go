// Package fsm is the quota state machine of one partition: it takes the entries of the partition's
// log, one after another, and answers the checks in them. It is the only place where a quota is
// decided.
//
// It is pure and deterministic. A step is a function of the state and the entry; it reads no clock, no
// file and no random number, uses integers only, and imports nothing that could do otherwise. Replicas
// that apply the same entries have the same state, which [Machine.Digest] proves.
//
// What it guarantees, for limits that are exact: the costs admitted in any rolling window (t-W, t] of
// partition time never sum to more than the limit; a check consumes from all its limits or from none;
// an admission is kept until no limit can count it any more; a recorded decision is repeated, and not
// made again, until its replay horizon has passed. That windows of partition time are windows of real
// time is the duty of whoever draws the stamps.
//
// The caller's duties:
//
//  1. Apply each entry of the log once, in order, with the Raft term that the log holds it in, by
//     [Machine.Step]. An entry that cannot be decoded must stop the replica; it must not be skipped. Before
//     the step, find the policy that the entry names where [Machine.Needs] asks for it.
//  2. Draw the stamp of an entry in the leadership whose term it carries, after an entry of that term
//     has been applied, and from a clock that never runs faster than real time.
//  3. Answer a check only after its entry is committed and applied.
//  4. Write snapshots with [Machine.BeginSnapshot] and [Snapshot.Next], and apply no entry during a
//     call of Next.
//  5. Answer what [Machine.Foresee] says only when an entry that was proposed afterwards, in the leadership that
//     asked, is committed.
//  6. Make the steps of a plan, which moves slots to another partition, as below, and no step that rests
//     on another one before that one is committed and applied.
//
// How the state is laid out: principals in shards by their slot; per (principal, class) one rolling log
// ([rolling]) that all limits read; replay records by a keyed hash; an agenda per shard of what ends when. All
// of it lies in slabs ([slab]) that are found by hash tables ([index]), so that what is many costs little
// memory, and the collector little time. Nothing is linear in the size of the state: an entry forgets a
// bounded number of things that have ended, and a lookup compares the end of what it finds, so what waits to
// be forgotten changes no answer. Likewise an import is unpacked, and what was released is dropped, some slots
// with each batch. Beside the digest of all there is one per slot.
//
// It does not know Raft, the network, other partitions, or which node it runs on.
//
// # Plans
//
// A plan moves slots from a source to a destination, by entries in the logs of both:
//
//   - stage, at the destination: images of slots that the source's [Machine.Images] wrote, in pieces, as
//     often as may be. [DifferingSlots] of the source's [Machine.SlotDigests] and the destination's
//     [Machine.Staged] says what is to be sent, so it does not matter who sent what before.
//   - freeze, at the source: from this entry on nothing is decided in the slots and nothing in them ends.
//     It answers the manifest.
//   - open, at the destination, with the manifest; stamped after the freeze was committed. Its partition
//     time is the base: at the end each time is moved by as much as the base is later than the freeze, so
//     that ages and what is left of horizons travel and timestamps do not. After it, stage what differs.
//   - seal, at the destination, with the policies that [Machine.StagedPolicies] names. It answers a
//     manifest; if that is the one of the freeze, the import is complete and takes nothing more, else it
//     stays open.
//   - activate, at the destination, after the decision that it owns the slots, under their new epoch.
//   - release, at the source, after the destination was activated.
//   - abort, instead of all that is left, at either end and before the decision only.
//
// A step that was made is answered alike when it is made again; a step of a plan that has ended here is
// refused ([ReasonPlanEnded]), so whoever wakes up after an abort does nothing. A partition is an end of
// one plan at a time. While slots are frozen, and from open to the end, no other policy is installed, and
// both ends have the same. The policy history travels as the image of [HistorySlot]: a destination that
// owns and holds nothing takes it over as it is, and may have a later policy, which then follows with the
// activation; otherwise the two histories meet, as conservative as either. An import whose source may have
// lost admissions is activated as lost: until its window has passed each limit then counts as full.
package fsm
