package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/state"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
	"github.com/quorate/quorate/quotaerr"
	"github.com/quorate/quorate/rpc"
)

// SearchAudit finds records of the audit trail. While the control group has no leader it searches this node's
// copy, and says so in a record of its own, of index 0, before the others.
func (a *Admin) SearchAudit(
	ctx context.Context, _ rpc.Actor, req *quoratev1.SearchAuditRequest,
) (*quoratev1.SearchAuditResponse, error) {
	limit, err := limitOf(req.GetLimit())
	if err != nil {
		return nil, err
	}
	from, err := nanosOf("from", req.GetFrom())
	if err != nil {
		return nil, err
	}
	until, err := nanosOf("until", req.GetUntil())
	if err != nil {
		return nil, err
	}
	c, _, old, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	found, next, err := c.Audit(audit.Query{
		FromNanos: from, UntilNanos: until, Actor: req.GetActor(), Action: req.GetAction(), Object: req.GetObject(),
		Before: req.GetBefore(), Limit: limit,
	})
	if err != nil {
		return nil, quotaerr.Wrap(quotaerr.Internal, err, "the audit trail cannot be read; see the node's log")
	}
	out, size := &quoratev1.SearchAuditResponse{Next: next}, 0
	if old != nil {
		out.Records = append(out.Records, a.incomplete(old))
	}
	for i, r := range found {
		size += len(r.Difference) + len(r.Comment) + len(r.Message) + len(r.Object) + len(r.Actor) + 128
		if i > 0 && size > maxListedBytes {
			out.Next = found[i-1].Index
			break
		}
		out.Records = append(out.Records, recordOf(r))
	}
	return out, nil
}

// incomplete is the record that says that newer ones may be missing.
func (a *Admin) incomplete(why error) *quoratev1.AuditRecord {
	return &quoratev1.AuditRecord{
		At: timestamppb.New(a.now()), Action: "audit.search", Object: "node " + a.cluster.Self(), Result: "incomplete",
		Message: fmt.Sprintf("the newest records may be missing: this is the copy of node %s (%s)", a.cluster.Self(),
			quotaerr.As(why).Message),
	}
}

func recordOf(r *state.Record) *quoratev1.AuditRecord {
	return &quoratev1.AuditRecord{
		Index: r.Index, At: timestamppb.New(time.Unix(0, r.WallNanos)), Actor: r.Actor, Action: r.Action, Object: r.Object,
		Comment: r.Comment, Difference: r.Difference, Result: r.Result, Message: r.Message,
	}
}

// nanosOf is a bound of the search in nanoseconds since 1970; 0 where there is none.
func nanosOf(field string, t *timestamppb.Timestamp) (int64, error) {
	if t == nil {
		return 0, nil
	}
	nanos := t.AsTime().UnixNano()
	if !t.IsValid() || !time.Unix(0, nanos).Equal(t.AsTime()) {
		return 0, quotaerr.New(quotaerr.InvalidArgument, "%s: name a time between the years 1678 and 2262", field)
	}
	return nanos, nil
}
