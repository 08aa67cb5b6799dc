package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/control"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/fsm"
	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
)

// The bounds of a difference that is told.
const (
	maxChanges     = 1000
	maxChangeBytes = 4 << 10
	maxDiffBytes   = 512 << 10
)

// difference is what differs between two policies, a line each.
type difference struct {
	lines []string
	more  int // lines that are left out
}

// difference compares a policy with the one of a revision, nil for none. When that one cannot be read this is
// what it says: it is no reason not to put another in force.
func (a *Admin) difference(
	ctx context.Context, c *control.Control, from *state.Revision, to *policy.Policy,
) difference {
	if from == nil {
		return differenceFromNone(to)
	}
	old, err := a.policyOf(ctx, c, from)
	if err != nil {
		return difference{lines: []string{fmt.Sprintf("? what differs from revision %d is not known: %s", from.Number,
			quotaerr.As(err).Message)}}
	}
	return cutChanges(policy.Compare(old, to))
}

// differenceFromNone is all that a first policy says.
func differenceFromNone(to *policy.Policy) difference {
	changes := []policy.Change{{Path: "version", Kind: policy.Added, New: to.Version}}
	for _, l := range to.Default.Limits {
		changes = append(changes, policy.Change{
			Path: "default.limits." + plain(l.Name), Kind: policy.Added,
			New: strconv.FormatInt(l.Max, 10) + " per " + policy.FormatDuration(l.WindowNanos),
		})
	}
	nothing, err := policy.New(policy.Policy{Version: to.Version, Default: to.Default})
	if err != nil { // a part of a policy that is valid
		return difference{lines: []string{"+ version: " + plain(to.Version)}}
	}
	return cutChanges(append(changes, policy.Compare(nothing, to)...))
}

func cutChanges(changes []policy.Change) (d difference) {
	size := 0
	for i, c := range changes {
		line := words(c.String(), maxChangeBytes)
		if size += len(line); i == maxChanges || size > maxDiffBytes {
			d.more = len(changes) - i
			break
		}
		d.lines = append(d.lines, line)
	}
	return d
}

// text is the difference as the audit trail takes it.
func (d difference) text() string {
	const room = 64 // for how many more there are
	var b strings.Builder
	for i, line := range d.lines {
		if b.Len()+len(line)+1 > state.MaxDifferenceBytes-room {
			fmt.Fprintf(&b, "and %d more\n", len(d.lines)-i+d.more)
			return b.String()
		}
		b.WriteString(line)
		b.WriteByte('\n')
	}
	if d.more > 0 {
		fmt.Fprintf(&b, "and %d more\n", d.more)
	}
	return b.String()
}

// response is an answer that says that r was, or would be, put in force.
func (d difference) response(r *state.Revision) *quoratev1.ApplyPolicyResponse {
	return &quoratev1.ApplyPolicyResponse{Revision: revisionOf(r), Changes: d.lines, MoreChanges: moreOf(d.more)}
}

func moreOf(n int) uint32 { return uint32(min(n, 1<<31)) }

// made is the answer to a command that was done with this result.
func (d difference) made(c *control.Control, r state.Result) (*quoratev1.ApplyPolicyResponse, error) {
	made, ok := c.State().Revision(r.Revision)
	if !ok {
		return nil, quotaerr.New(quotaerr.OutcomeUnknown,
			"revision %d was put in force, and is no longer in the history: see `quorate policy list`", r.Revision)
	}
	return d.response(made), nil
}

// plain is a name within a path, in quotes when it would be ambiguous without.
func plain(name string) string {
	odd := func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_/@+:", r)
	}
	if name == "" || strings.ContainsFunc(name, odd) {
		return strconv.Quote(name)
	}
	return name
}

// revisionOf is a revision as it is told.
func revisionOf(r *state.Revision) *quoratev1.Revision {
	if r == nil {
		return nil
	}
	return &quoratev1.Revision{
		Number: uint64(r.Number), Version: r.Label, Kind: r.Kind.String(), Base: uint64(r.Base), Author: r.Author,
		At: timestamppb.New(time.Unix(0, r.WallNanos)), Comment: r.Comment, Digest: r.Body[:], Size: r.Bytes,
	}
}

// revisionOr is the revision of this number, the one in force for 0.
func revisionOr(s *state.State, number uint64) (*state.Revision, error) {
	if number == 0 {
		if now := s.InForce(); now != nil {
			return now, nil
		}
		return nil, quotaerr.New(quotaerr.InvalidArgument, "there is no policy yet: run `quorate policy apply`")
	}
	r, ok := s.Revision(fsm.Revision(number))
	if !ok {
		return nil, quotaerr.New(quotaerr.InvalidArgument,
			"revision %d is not in the history: see `quorate policy list`", number)
	}
	return r, nil
}
