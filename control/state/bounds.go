package state

import (
	"strings"
	"unicode/utf8"

	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
)

// The bounds of the control group's state. At one of them new things are refused, unless said otherwise.
const (
	// MaxNodes counts removed ones too: their directories must stay known.
	MaxNodes = 1024
	// MaxFormerInstances bounds the data directories that a node has lost; the oldest is forgotten.
	MaxFormerInstances = 8
	// MaxPartitions bounds the partitions at one time.
	MaxPartitions = 4096
	// MaxReplicas bounds the replicas of one partition.
	MaxReplicas = 9
	// MaxOpenPlans bounds the plans that have not been closed.
	MaxOpenPlans = 256
	// MaxEndedPlans bounds the closed plans that are remembered; the oldest is forgotten.
	MaxEndedPlans = 256
	// MaxRevisions bounds the policy history; the oldest is forgotten, and its label with it.
	MaxRevisions = 16384
	// MaxKeptBodies and MaxKeptBodyBytes bound the bodies that are kept for the newest revisions. The bodies
	// of the newest two are kept whatever their size.
	MaxKeptBodies    = 256
	MaxKeptBodyBytes = int64(8) << 30
	// MaxBodyBytes bounds one body: a policy with every override that one may have fits.
	MaxBodyBytes = int64(1) << 30
	// MaxRecorded bounds the command ids whose results are remembered; the oldest is forgotten.
	MaxRecorded = 4096
	// MaxNotes bounds the installed revisions in one command: one for each partition.
	MaxNotes = MaxPartitions
	// MaxTokens bounds the tokens; the one that ended first is forgotten for a new one.
	MaxTokens = 1024
	// MaxTokenNanos is the longest time for which a token may be valid.
	MaxTokenNanos = int64(366) * 24 * 3600 * 1_000_000_000
	// MaxAuditRecords bounds the audit trail; the oldest record is dropped.
	MaxAuditRecords = 1_000_000
	// MaxCommandBytes bounds an encoded command; see Kind.MaxBytes.
	MaxCommandBytes = 256 << 10
	// MaxRestoredBytes bounds what a backup keeps of the control state, encoded: the newest revision and all tokens
	// fit, whatever they are, and thousands of revisions of the usual size.
	MaxRestoredBytes = 4 << 20

	// MaxIDBytes bounds the ids of cluster, node and instance. Node and instance together make the id of a
	// replica, which its group bounds further.
	MaxIDBytes      = 100
	MaxAddressBytes = 270
	MaxZoneBytes    = 64
	MaxLabelBytes   = policy.MaxNameBytes
	MaxActorBytes   = 256
	// MaxActionBytes and MaxObjectBytes bound an attempt's own words.
	MaxActionBytes  = 64
	MaxObjectBytes  = 768
	MaxCommentBytes = 1024
	// MaxMessageBytes bounds what a note says.
	MaxMessageBytes    = 2048
	MaxDifferenceBytes = 16 << 10
)

// maxCounter is where the ownership counter ends: an epoch has 32 bits for it.
const maxCounter = uint64(1)<<32 - 1

// MaxBytes bounds an encoded command of this kind. Only what a cluster takes over of a backup may be larger than the
// rest.
func (k Kind) MaxBytes() int {
	if k == KindInit {
		return MaxRestoredBytes + MaxCommandBytes
	}
	return MaxCommandBytes
}

// checkName refuses text that is no name; an empty one only where empty is false.
func checkName(field, s string, maxBytes int, empty bool) *Refusal {
	switch {
	case s == "" && empty:
		return nil
	case s == "":
		return refuse(CodeInvalid, "%s is empty", field)
	case len(s) > maxBytes:
		return refuse(CodeInvalid, "%s has %d bytes: use at most %d", field, len(s), maxBytes)
	case !utf8.ValidString(s):
		return refuse(CodeInvalid, "%s is not valid UTF-8", field)
	case strings.IndexByte(s, 0) >= 0:
		return refuse(CodeInvalid, "%s contains a NUL", field)
	}
	return nil
}

// checkID refuses what cannot be the id of a node, cluster or instance.
func checkID(field, s string, empty bool) *Refusal {
	if r := checkName(field, s, MaxIDBytes, empty); r != nil {
		return r
	}
	if i := strings.IndexFunc(s, func(c rune) bool {
		return c <= ' ' || c == '@' || c == '/' || c == '\\' || c > '~'
	}); i >= 0 {
		return refuse(CodeInvalid, "%s %q has a character that ids cannot have: use letters, digits, - . _", field, s)
	}
	return nil
}

// checkRanges refuses ranges that are none, out of order or overlapping.
func checkRanges(ranges []fsm.SlotRange) *Refusal {
	if len(ranges) == 0 {
		return refuse(CodeInvalid, "no slots are named: name at least one range")
	}
	for i, r := range ranges {
		switch {
		case r.First > r.Last || r.Last >= fsm.NumSlots:
			return refuse(CodeInvalid, "slots %d to %d are no range of the %d slots", r.First, r.Last, fsm.NumSlots)
		case i > 0 && r.First <= ranges[i-1].Last:
			return refuse(CodeInvalid, "slots %d to %d overlap the range before, or are out of order", r.First, r.Last)
		}
	}
	return nil
}
