package errtable

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quorate/quorate/quotaerr"
)

// Domain is the domain of every google.rpc.ErrorInfo.
const Domain = "quorate"

// The keys of an ErrorInfo's metadata.
const (
	MetaEpoch      = "epoch"
	MetaLeader     = "leader"
	MetaLeaderAddr = "leader_addr"
)

// Wait is how long e's caller should wait before it tries again; 0 when there is nothing to tell.
func Wait(e *quotaerr.Error) time.Duration {
	if e.RetryAfterNanos > 0 {
		return time.Duration(e.RetryAfterNanos)
	}
	return Lookup(e.Reason).Wait
}

// ToStatus turns err into the gRPC status that its row names, with ErrorInfo and, where a wait is
// known, RetryInfo. The cause stays behind. ctx is the call's: an unknown outcome after its deadline
// is DEADLINE_EXCEEDED.
func ToStatus(ctx context.Context, err error) *status.Status {
	e := quotaerr.As(err)
	if e == nil {
		return status.New(codes.OK, "")
	}
	code := Lookup(e.Reason).Code
	if e.Reason == quotaerr.OutcomeUnknown && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = codes.DeadlineExceeded
	}
	info := &errdetails.ErrorInfo{Reason: string(e.Reason), Domain: Domain}
	meta := map[string]string{}
	if e.Epoch != 0 {
		meta[MetaEpoch] = strconv.FormatUint(e.Epoch, 10)
	}
	if e.Leader != "" {
		meta[MetaLeader] = strings.ToValidUTF8(e.Leader, "?")
	}
	if e.LeaderAddr != "" {
		meta[MetaLeaderAddr] = strings.ToValidUTF8(e.LeaderAddr, "?")
	}
	if len(meta) > 0 {
		info.Metadata = meta
	}
	details := []protoadapt.MessageV1{info}
	if w := Wait(e); w > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(w)})
	}
	st := status.New(code, PublicMessage(e))
	if with, derr := st.WithDetails(details...); derr == nil {
		return with
	}
	return st
}

// PublicMessage is what the caller may read of e: its message in valid UTF-8, its reason where it
// has none, and nothing of an internal error but that it is one.
func PublicMessage(e *quotaerr.Error) string {
	if e.Reason == quotaerr.Internal {
		return "internal error: see the node's log"
	}
	if e.Message == "" {
		return string(e.Reason)
	}
	if !utf8.ValidString(e.Message) {
		return strings.ToValidUTF8(e.Message, "?")
	}
	return e.Message
}

// FromStatus turns what a gRPC call returned back into a quotaerr.Error; nil stays nil. Without a
// readable ErrorInfo the code decides, and where the call may have been carried out the outcome is
// unknown.
func FromStatus(err error) *quotaerr.Error {
	if err == nil {
		return nil
	}
	var e *quotaerr.Error
	if errors.As(err, &e) && e != nil {
		return quotaerr.As(err)
	}
	st, _ := status.FromError(err)
	for _, d := range st.Details() {
		info, ok := d.(*errdetails.ErrorInfo)
		if !ok || info.GetDomain() != Domain {
			continue
		}
		r := quotaerr.Reason(info.GetReason())
		if !r.Known() || r.IsDecision() {
			break
		}
		return fromInfo(st, r, info)
	}
	return quotaerr.Wrap(reasonOfCode(err, st.Code()), err, "%s", bareMessage(st))
}

func fromInfo(st *status.Status, r quotaerr.Reason, info *errdetails.ErrorInfo) *quotaerr.Error {
	e := &quotaerr.Error{Reason: r, Message: st.Message()}
	e.Leader = info.GetMetadata()[MetaLeader]
	e.LeaderAddr = info.GetMetadata()[MetaLeaderAddr]
	if n, err := strconv.ParseUint(info.GetMetadata()[MetaEpoch], 10, 64); err == nil {
		e.Epoch = n
	}
	for _, d := range st.Details() {
		if ri, ok := d.(*errdetails.RetryInfo); ok && ri.GetRetryDelay().IsValid() {
			e.RetryAfterNanos = max(0, int64(ri.GetRetryDelay().AsDuration()))
		}
	}
	return e
}

func reasonOfCode(err error, c codes.Code) quotaerr.Reason {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return quotaerr.OutcomeUnknown
	}
	switch c {
	case codes.InvalidArgument, codes.OutOfRange, codes.Unimplemented, codes.NotFound:
		return quotaerr.InvalidArgument
	case codes.Unauthenticated:
		return quotaerr.Unauthenticated
	case codes.PermissionDenied:
		return quotaerr.PermissionDenied
	case codes.ResourceExhausted:
		return quotaerr.Overloaded
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Aborted:
		return quotaerr.OutcomeUnknown
	default:
		return quotaerr.Internal
	}
}

func bareMessage(st *status.Status) string {
	switch st.Code() {
	case codes.Unavailable:
		return "the node cannot be reached or broke off; check its address and that it runs"
	case codes.DeadlineExceeded, codes.Canceled:
		return "no answer came in time; retry with the same decision id"
	case codes.Unimplemented:
		return "the node does not know this call; check that address and version are right"
	default:
		return "the node answered " + st.Code().String() + " without a reason"
	}
}
