// Package reference is a naive model of the rules of a decision: what tests hold the real state
// machine against. It is not for the product.
//
// The model keeps every admission, every record and every policy revision for ever, and finds each
// number by going through all of them. It has no cursors, running sums, eviction or rounding, so
// that it can be compared with the rules by reading it. It shares types and no code with the state
// machine. Generators of policies, of changes to them and of checks come with it.
//
// The caller hands over at most a few thousand entries, revisions that grow by each install, and
// stamps below fsm.MaxTime.
//
// A partition can move ([Model.Move]): as if its time had been another from the beginning. It can take
// over the principals of another one ([Model.Merge]), and admissions of before an instant can be lost
// ([Model.Lose]).
//
// Left out: max_keys and max_replay_records (they are never reached here), the 4,096 pairs of a log
// and its rounding, the steps of a plan (Model.Slots can answer for frozen slots), Raft terms, snapshots.
//
// # Readings
//
// Where the rules leave room, the model reads them like this:
//
//   - R of a class before an install counts the rule in force until then, at its full length: a
//     window that is shortened by an install counts after it as well.
//   - A class that no rule names has R = 0. When it is listed, known_since becomes the instant of the
//     install unless that is the birth, or an earlier R still counts and is not shorter.
//   - A name listed or unlisted at the instant of the birth is known from that instant; the exception
//     for what lies before the birth is made for known_since of classes only.
//   - known_since cuts at or before: an admission at the very instant of an install that sets
//     known_since to it is not counted, even if it came after the install in the log. It must have
//     found room all the same, and it counts in the logs of other classes.
//   - known_since of a class cuts the admissions of that class only, also in the sum of a group.
//   - Whether a revision was exact for a name when it ended is told from what was known before the
//     install that ended it. A limit of 0 counts in that as any other. At the very instant known + W
//     a limit is exact.
//   - While any limit of the check's rule is inexact all limits of the carried rule but those of 0
//     apply, also those that are the same as a limit of the check's rule.
//   - An allow is appended to the log of the carried rule's class only while that rule is carried for
//     the check.
//   - What earlier members of a check would take counts in the same classes, carried ones included,
//     also at the very instant of known_since, at which an admission is not counted afterwards. With
//     the cost it may exceed a limit outright: cost_exceeds_limit for a limit of the check's rule, the
//     instant of exactness as the deadline of a carried one.
//   - remaining of a denial leaves out what earlier members of the check would have taken, the
//     decision itself and its deadline count it.
//   - A denial of a later member is recorded like one of the first, until the main class's horizon.
//   - An answer from a record carries no limits and the recorded revision; the revision that the
//     check names is not compared.
//   - A forgive of one name drops what is counted for its class, and for the class of the rule that is
//     carried while any rule of its class is inexact; other members of its group keep theirs.
//   - Where two partitions meet, what is carried for a name is what either carried for it, and the
//     revision that both have in force, until every limit of it is exact by the later of what both know.
//     A class is known no longer than each side has held its admissions, unless the side was born later.
//   - While what was lost may count, a limit counts as full, or as more where it holds more; a deadline,
//     a carried limit's as well, is not before that time has passed. A limit of 0 and a cost above a limit
//     are told as ever.
//   - Denials that are not recorded are evaluated anew and do not count among the 64.
package reference
