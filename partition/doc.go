// Package partition is one node's replica of a quota partition, and the partition's owner while the node
// leads it.
//
// The owner queues checks, closes a batch of whatever queued while the entries before were on their way,
// draws the batch's stamp, commits it and answers with what the state machine decided. It adds no delay of
// its own: a lone check is committed at once, and under load the entries grow. Where many partitions of a node are
// busy they share the entries under way, see [InFlight], so that entries grow with the number of partitions too.
//
// Guarantees: a decision is returned only after its entry was committed and applied here, in the leadership
// that stamped it. An error other than outcome_unknown and internal says that the check consumed nothing,
// and never will. A check whose caller has given up before it was proposed is not proposed. Queues, entries and
// entries in flight are bounded, and one gateway cannot fill the queue alone. No check is proposed whose stamp
// was drawn after the node's policy lease had ended, and none for a partition that owns nothing, as the node knows it.
//
// Partitions hand over slots by plans: [Export] reads what the source has, while entries go on being applied, and
// [Partition.Stage] puts it into the log of the destination. Each step is an entry, made once and answered alike when
// it is asked for again; when a plan has ended here its steps change nothing. In which order they are to come is for
// the caller to see to.
//
// The caller's duties: validate a check by [fsm.ValidateCheck] before it is given to [Partition.Check] or
// [Partition.Enqueue], watch the deadlines of what it has queued by the latter, and give the group's applier to no one
// else.
//
// It does not decide quotas ([fsm] does), find the partition of a principal, drive plans, or know any wire protocol.
package partition
