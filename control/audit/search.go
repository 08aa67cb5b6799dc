package audit

import (
	"errors"
	"strings"

	"go.etcd.io/bbolt"

	"github.com/quorate/quorate/control/state"
)

// The bounds of one search.
const (
	MaxFound   = 1000    // records
	MaxScanned = 100_000 // records looked at
)

// Query says which records are wanted. Zero fields do not restrict.
type Query struct {
	FromNanos, UntilNanos int64  // wall time, from inclusive, until exclusive
	Actor                 string // exactly
	Action                string // exactly, or everything below it: "policy" finds "policy.publish"
	Object                string // exactly, or its name alone: "n1" finds "node n1"
	Before                uint64 // log index: only older records, to go on where a search ended
	Limit                 int    // records, at most MaxFound; 0 means 100
}

func (q *Query) matches(r *state.Record) bool {
	_, name, _ := strings.Cut(r.Object, " ")
	return (q.FromNanos == 0 || r.WallNanos >= q.FromNanos) && (q.UntilNanos == 0 || r.WallNanos < q.UntilNanos) &&
		(q.Actor == "" || r.Actor == q.Actor) &&
		(q.Action == "" || r.Action == q.Action || strings.HasPrefix(r.Action, q.Action+".")) &&
		(q.Object == "" || r.Object == q.Object || name == q.Object)
}

// Search finds records, the newest first. next is what Before has to be to go on; 0 when there is no more.
// Wall clocks may disagree, so the order is that of the log, and all records are looked at.
func (t *Trail) Search(q Query) (found []*state.Record, next uint64, err error) {
	if q.Limit < 0 || q.Limit > MaxFound {
		return nil, 0, errors.New("the limit of an audit search is at most 1000 records: go on with the next page")
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	err = t.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(recordsBucket).Cursor()
		k, v := c.Last()
		if q.Before != 0 {
			if at, _ := c.Seek(key(q.Before)); at != nil {
				k, v = c.Prev()
			} else {
				k, v = c.Last()
			}
		}
		for scanned := 0; k != nil; k, v = c.Prev() {
			if len(found) == q.Limit || scanned == MaxScanned {
				return nil
			}
			index, _, r, err := split(k, v)
			if err != nil {
				return err
			}
			if q.matches(r) {
				found = append(found, r)
			}
			next = index
			scanned++
		}
		next = 0
		return nil
	})
	return found, next, err
}
