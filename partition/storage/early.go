package storage

import (
	"errors"

	"github.com/hashicorp/raft"
)

// An append may return early, when it has begun and before it is durable, if Config.Early says so. A leader's is such
// a one: Raft sends entries to the followers only when its own append has returned, and the followers' disks would
// wait for the leader's. Early, all write at the same time.
//
// Why nothing is taken for durable that is not:
//
//  1. It is for who counts on entries to ask awaitDurable before: a leader before it counts a follower's
//     acknowledgement of them. Alone it is no majority, so it commits nothing without one.
//  2. One append is behind at most. The next one, a truncation and whoever asks where the log ends wait for it, so
//     that all of it is in order, and the log that they see is that on the disk.
//  3. A change of members is never early, and comes after what is behind: until it counts, the old members do.
//  4. A failure breaks the stores, as any other does: awaitDurable returns it, now and for ever.
//
// Until it is durable, an entry can be read from memory only: an early append is far smaller than what is kept there.

// maxEarlyBytes bounds what may be behind.
const maxEarlyBytes = cachedBytes / 4

// write is an append that is behind.
type write struct {
	first uint64        // index of its first entry
	done  chan struct{} // closed when it has ended
	err   error         // set before
}

// errEnded is the error of an append that did not come back, not even with one.
var errEnded = errors.New("the append was ended")

// mayBeEarly reports whether an append may return before it is durable.
func (l *log) mayBeEarly(logs []*raft.Log) bool {
	if l.early == nil || !l.early() {
		return false
	}
	numBytes := uint64(0)
	for _, e := range logs {
		if e.Type == raft.LogConfiguration {
			return false
		}
		numBytes += entryBytes(e)
	}
	return numBytes <= maxEarlyBytes
}

// appendBehind begins an append. It needs writing, and gives it back when the append has ended.
func (l *log) appendBehind(logs []*raft.Log) error {
	if err := l.stop.err(); err != nil {
		l.writing.Unlock()
		return err
	}
	w := &write{first: logs[0].Index, done: make(chan struct{}), err: errEnded}
	l.behind.Store(w)
	go func() {
		defer l.writing.Unlock()
		defer close(w.done)
		w.err = l.append(logs)
	}()
	return nil
}

// awaitDurable waits until the entries up to an index, as far as they have been given to StoreLogs, are on the disk.
// An error says that they are not, or that canceled was closed first.
func (l *log) awaitDurable(index uint64, canceled <-chan struct{}) error {
	w := l.behind.Load()
	if w == nil || index < w.first {
		return l.stop.err() // the appends before it had ended when it began
	}
	select {
	case <-w.done:
		return w.err
	case <-canceled:
		return errCanceled
	}
}

// FirstIndex is the index of the first entry; 0 without one.
func (l *log) FirstIndex() (uint64, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.LogBackend.FirstIndex()
}

// LastIndex is the index of the last entry; 0 without one.
func (l *log) LastIndex() (uint64, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	return l.LogBackend.LastIndex()
}

// AwaitDurable waits until the entries up to an index are on the disk, as far as they were appended. An error says
// that they are not, or that canceled was closed first.
func (s *Store) AwaitDurable(index uint64, canceled <-chan struct{}) error {
	return s.log.awaitDurable(index, canceled)
}
