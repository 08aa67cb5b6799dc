package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/quorate/quorate/policy"
	quoratev1 "github.com/quorate/quorate/proto/quorate/v1"
)

// revisionView is a policy revision as it is printed.
type revisionView struct {
	Number  uint64    `json:"number"`
	Version string    `json:"version"`
	Kind    string    `json:"kind"`
	Base    uint64    `json:"base"`
	Author  string    `json:"author"`
	At      time.Time `json:"at"`
	Comment string    `json:"comment"`
	Digest  string    `json:"digest"`
	Size    int64     `json:"size"`
}

func revisionOf(r *quoratev1.Revision) revisionView {
	return revisionView{
		Number: r.GetNumber(), Version: r.GetVersion(), Kind: r.GetKind(), Base: r.GetBase(), Author: r.GetAuthor(),
		At: timeOf(r.GetAt()), Comment: r.GetComment(), Digest: hex.EncodeToString(r.GetDigest()), Size: r.GetSize(),
	}
}

// String is the revision by number and label.
func (r revisionView) String() string { return revisionText(r.Number, r.Version) }

func revisionText(number uint64, version string) string {
	return fmt.Sprintf("%d (%s)", number, version)
}

// timeOf is a time as it is printed; the zero time when there is none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// timeText is a time for people, to the second; a dash when there is none.
func timeText(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

// durationOf is a wire duration as it is printed; empty when there is none.
func durationOf(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return policy.FormatDuration(int64(d.AsDuration()))
}

// aboutText is a wait for people: rounded up to a second, to a minute from an hour on.
func aboutText(d time.Duration) string {
	unit := time.Second
	if d >= time.Hour {
		unit = time.Minute
	}
	return policy.FormatDuration(int64((max(d, 0) + unit - 1).Truncate(unit)))
}

// inForce is the revision in force; nil when there is none yet.
func inForce(ctx context.Context, s *session) (*quoratev1.Revision, error) {
	r, err := call(ctx, s, s.ListPolicies, &quoratev1.ListPoliciesRequest{Limit: 1})
	if err != nil || len(r.GetRevisions()) == 0 {
		return nil, err
	}
	return r.GetRevisions()[0], nil
}
