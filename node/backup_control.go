package node

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/control/audit"
	"github.com/quorate/quorate/control/bodies"
	"github.com/quorate/quorate/control/state"
	"github.com/quorate/quorate/quotaerr"
)

// collectBodies finds the policies' bodies that the restored cluster will want, fetches what is not here and reads
// each once. One that only older revisions name, and that no node has whole, is left out.
func (s *save) collectBodies(ctx context.Context) error {
	needed := map[state.Digest]string{s.state.InForce().Body: "the policy in force"}
	for _, p := range s.parts {
		for _, number := range p.carried {
			r, ok := s.state.Revision(number)
			if !ok {
				return quotaerr.New(quotaerr.NoQuorum, "partition %s carries policy revision %d, which is not in the history any "+
					"more: save again when `quorate policy status` does not show it", p.ID, number)
			}
			needed[r.Body] = fmt.Sprintf("policy revision %d, which partition %s carries", number, p.ID)
		}
	}
	wants := (&state.State{Revisions: s.kept.Revisions}).Wants()
	for d := range needed {
		wants[d] = 0
	}
	for d := range wants {
		size, err := s.wholeBody(ctx, d)
		what, must := needed[d]
		switch {
		case err == nil:
			s.bodies = append(s.bodies, savedBody{d, size})
		case ctx.Err() != nil:
			return ctx.Err()
		case must:
			return quotaerr.Wrap(quotaerr.NoQuorum, err, "%s is on no node that answers: see `quorate cluster status`", what)
		default:
			s.logger.Warn("a backup lacks the body of an old policy", "body", d.String(), "error", err)
		}
	}
	slices.SortFunc(s.bodies, func(a, b savedBody) int { return strings.Compare(a.digest.String(), b.digest.String()) })
	return nil
}

// wholeBody makes sure that a body is here and whole, and tells its size.
func (s *save) wholeBody(ctx context.Context, d state.Digest) (size int64, err error) {
	store := s.control().Bodies()
	for range 2 {
		if err = s.fetchBody(ctx, d); err != nil {
			return 0, err
		}
		size = 0
		for chunk, broken := range store.Chunks(d) {
			size += int64(len(chunk))
			if err = broken; err == nil {
				err = ctx.Err()
			}
			if err != nil {
				break
			}
		}
		if !errors.Is(err, bodies.ErrMismatch) {
			return size, err
		}
		if err := store.Discard(d); err != nil {
			return 0, err
		}
	}
	return 0, err
}

// auditLine is a record of the audit trail in a backup.
type auditLine struct {
	Index      uint64    `json:"index"`
	At         time.Time `json:"at"`
	Actor      string    `json:"actor,omitempty"`
	Action     string    `json:"action"`
	Object     string    `json:"object,omitempty"`
	Comment    string    `json:"comment,omitempty"`
	Difference string    `json:"difference,omitempty"`
	Result     string    `json:"result"`
	Message    string    `json:"message,omitempty"`
}

// collectAudit copies the audit trail, oldest first. A search goes the other way: so the pages are found first.
func (s *save) collectAudit(ctx context.Context) (err error) {
	if s.audit, err = s.newSpool(); err != nil {
		return err
	}
	page := func(before uint64) (found []*state.Record, next uint64, _ error) {
		if err := ctx.Err(); err != nil {
			return nil, 0, err
		}
		found, next, err := s.control().Audit(audit.Query{Before: before, Limit: audit.MaxFound})
		if err != nil {
			err = quotaerr.Wrap(quotaerr.Internal, err, "the audit trail cannot be read; see the node's log")
		}
		return found, next, err
	}
	newest, _, err := page(0)
	if err != nil || len(newest) == 0 {
		return err
	}
	pages := []uint64{}
	// From a fixed record on: others come meanwhile, and would shift the pages.
	for before, more := newest[0].Index+1, true; more; more = before != 0 {
		pages = append(pages, before)
		if _, before, err = page(before); err != nil {
			return err
		}
	}
	out := bufio.NewWriterSize(s.audit, pieceBytes)
	lines := json.NewEncoder(out)
	for _, before := range slices.Backward(pages) {
		found, _, err := page(before)
		if err != nil {
			return err
		}
		for _, r := range slices.Backward(found) {
			err := lines.Encode(auditLine{
				r.Index, time.Unix(0, r.WallNanos).UTC(), r.Actor, r.Action, r.Object, r.Comment, r.Difference, r.Result, r.Message,
			})
			if err != nil {
				return err
			}
		}
	}
	return out.Flush()
}
